"""Jobs of every kind of data, and changes of their files between two attempts."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests import own_job, reports
from tests.task_cases import CASES, Case, image_folders, table, texts

ARRAYS = """
import numpy as np

def load(path, plain=""):
    found = np.load(path)
    return (found["x"], found["y"]), (found["x"][:9], found["y"][:9])
"""


def manifest(folder: Path) -> None:
    """Images that a table lists."""
    image_folders(folder)
    for part in ("train", "held"):
        paths = sorted(path.relative_to(folder) for path in (folder / part).rglob("*.*"))
        rows = "".join(f"{path},{path.parent.name}\n" for path in paths)
        (folder / f"{part}.csv").write_text(f"path,label\n{rows}")


def lines(folder: Path) -> None:
    """The texts as JSON lines, with some rows for validation taken from the training file."""
    texts(folder)
    with (folder / "train.csv").open(newline="") as file:
        rows = [json.dumps(row) for row in csv.DictReader(file)]
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")


def parquet(folder: Path) -> None:
    """The table as Parquet."""
    from pyarrow import csv as tables
    from pyarrow import parquet

    table(folder)
    parquet.write_table(tables.read_csv(folder / "train.csv"), folder / "train.parquet")


def write_user_arrays(folder: Path) -> None:
    """An .npz that the user's own function reads."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(folder / "train.npz", x=x, y=(x.sum(1) > 0).astype(np.int64))
    (folder / "my_data.py").write_text(ARRAYS)
    (folder / "my_model.py").write_text(own_job.MODEL)


TEXT = CASES["one text head"].text

TABLE = CASES["table"].text

JOBS = CASES | {
    "manifest": Case(
        manifest,
        ".csv",
        CASES["image folders"]
        .text.replace("train: train", "train: train.csv")
        .replace("validation: held", "validation: held.csv"),
    ),
    "json lines": Case(lines, ".jsonl", TEXT.replace("train.csv", "train.jsonl").replace("held.csv", "0.3")),
    "parquet": Case(parquet, ".parquet", TABLE.replace("train.csv", "train.parquet").replace("held.csv", "0.3")),
    "split table": Case(table, ".csv", TABLE.replace("held.csv", "0.3")),
    "own": Case(
        write_user_arrays,
        ".npz",
        "task: custom\ndata: {file: my_data.py, arguments: {path: PLACE/train.npz, plain: no file}}\n"
        "model: {file: my_model.py}\n",
    ),
}

INITIAL_FILES = (
    "run",
    "train",
    "held",
    "pictures-train",
    "pictures-held",
    "job.yaml",
    *(
        f"{part}.{kind}"
        for part in ("train", "held", "my_data", "my_model")
        for kind in ("csv", "npz", "jsonl", "parquet", "py")
    ),
)
"""All that a job's folder begins with."""


@dataclass(frozen=True)
class Way:
    """One way to touch the files of a job."""

    jobs: tuple[str, ...]
    change: Callable[[Path], object]
    named_file: str = ""
    """The file that the refusal names; none if the run has to go on."""


def edit_text(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    """Write a text file again."""

    def apply(folder: Path) -> None:
        with (folder / name).open(newline="", encoding="utf-8") as file:
            before = file.read()
        after = change(before)
        assert after != before
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            file.write(after)

    return apply


def reverse_rows(text: str) -> str:
    head, *rows = text.splitlines(keepends=True)
    return "".join([head, *reversed(rows)])


def quote_cells(text: str) -> str:
    rows = list(csv.reader(text.splitlines()))
    return "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows) + "\n"


def change_arrays(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[[Path], object]:
    """Write the arrays of train.npz again."""

    def apply(folder: Path) -> None:
        with np.load(folder / "train.npz") as file:
            before = dict(file)
        np.savez(folder / "train.npz", **change(before))  # type: ignore[arg-type]

    return apply


def change_number(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    name = next(name for name in arrays if name not in ("y", "labels"))
    arrays[name][3].flat[0] += 1
    return arrays


def replace_pixels(folder: Path) -> None:
    """Another picture in the same number of bytes, and with the old time."""
    path = folder / "train" / "a" / "4.png"
    before = path.stat()
    with Image.open(path) as image:
        size = image.size
    Image.new("RGB", size, "red").save(path)
    assert path.stat().st_size < before.st_size
    with path.open("ab") as file:
        file.write(b"\0" * (before.st_size - path.stat().st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def swap_names(folder: Path) -> None:
    """Swap the names of two files."""
    one, two = folder / "train" / "a" / "4.png", folder / "train" / "b" / "5.png"
    one.rename(folder / "kept")
    two.rename(one)
    (folder / "kept").rename(two)


def touch_files(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        os.utime(path, (1, 1))


def write_again(folder: Path) -> None:
    """Every file is written again with the same bytes."""
    for path in folder.rglob("*.*"):
        if "run" not in path.parts and path.is_file():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)


def edit_parquet(folder: Path) -> None:
    from pyarrow import parquet

    arrow_table = parquet.read_table(folder / "train.parquet")
    kinds = ["p" if kind == "q" else kind for kind in arrow_table["kind"].to_pylist()]
    index = arrow_table.column_names.index("kind")
    parquet.write_table(arrow_table.set_column(index, "kind", [kinds]), folder / "train.parquet")


CSV = ("texts", "one text head", "series", "table", "table labels", "table numbers", "split table")

NPZ = ("image arrays", "series numbers", "own")

FOLDERS = ("image folders", "manifest")

FIRST = "train/a/0.jpg"

WAYS = {
    "copied": Way(tuple(JOBS), lambda folder: None),
    "touched": Way(tuple(JOBS), touch_files),
    "written again": Way(("texts", "image folders", "own"), write_again),
    "a cell": Way(
        ("table", "split table"), edit_text("train.csv", lambda text: text.replace(",Lima,", ",Quito,", 1)), "train.csv"
    ),
    "a number": Way(
        ("series", "table numbers"), edit_text("train.csv", lambda text: text.replace("\n2", "\n3", 1)), "train.csv"
    ),
    "a word": Way(
        ("texts", "one text head"), edit_text("train.csv", lambda text: text.replace("motor", "rotor", 3)), "train.csv"
    ),
    "a category": Way(
        ("table", "table labels", "split table"),
        edit_text("train.csv", lambda text: text.replace("Lima", "Cusco")),
        "train.csv",
    ),
    "a label": Way(
        ("texts", "table", "split table"),
        edit_text("train.csv", lambda text: text.replace(",y", ",w").replace(",q,", ",o,")),
        "train.csv",
    ),
    "a row more": Way(CSV, edit_text("train.csv", lambda text: text + text.splitlines()[-1] + "\n"), "train.csv"),
    "a row less": Way(
        CSV, edit_text("train.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1])), "train.csv"
    ),
    "another order": Way((*CSV, "manifest"), edit_text("train.csv", reverse_rows), "train.csv"),
    "another order of lines": Way(("json lines",), edit_text("train.jsonl", reverse_rows), "train.jsonl"),
    "a label in a parquet": Way(("parquet",), edit_parquet, "train.parquet"),
    "line ends": Way(CSV, edit_text("train.csv", lambda text: text.replace("\n", "\r\n")), "train.csv"),
    "a mark of the encoding": Way(
        ("texts", "table"), edit_text("train.csv", lambda text: "\ufeff" + text), "train.csv"
    ),
    "quotes": Way(("table", "series"), edit_text("train.csv", quote_cells), "train.csv"),
    "validation": Way(
        CSV[:-1], edit_text("held.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1])), "held.csv"
    ),
    "no validation file": Way(("texts", "table"), lambda folder: (folder / "held.csv").unlink(), "held.csv"),
    "a number of an array": Way(NPZ, change_arrays(change_number), "train.npz"),
    "arrays in another order": Way(NPZ, change_arrays(lambda all: {k: v[::-1] for k, v in all.items()}), "train.npz"),
    "shorter arrays": Way(NPZ, change_arrays(lambda all: {k: v[:-1] for k, v in all.items()}), "train.npz"),
    "other pixels": Way(FOLDERS, replace_pixels, "train/a/4.png"),
    "two images swapped": Way(FOLDERS, swap_names, "train/a/4.png"),
    "an image less": Way(FOLDERS, lambda folder: (folder / FIRST).unlink(), FIRST),
    "an image more": Way(
        FOLDERS[:1], lambda folder: shutil.copy(folder / FIRST, folder / "train/b/new.jpg"), "train/b/new.jpg"
    ),
    "a label of an image": Way(
        FOLDERS[1:], edit_text("train.csv", lambda text: text.replace(",b\n", ",a\n", 1)), "train.csv"
    ),
    "a class renamed": Way(FOLDERS[:1], lambda folder: (folder / "train/a").rename(folder / "train/c"), "train/a"),
    "a note among the images": Way(FOLDERS, lambda folder: (folder / "train/a/read.me").write_text("x")),
}


def other_words(path: Path) -> None:
    """Make a tokenizer in which two words have swapped their ids."""
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[60], list(vocabulary)[61]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(tokenizer))


def other_weights(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


PRETRAINED: dict[str, Callable[[Path], object]] = {
    "tokenizer.json": other_words,
    "config.json": lambda path: reports.edit_json(path, hidden_act="relu"),
    "model.safetensors": other_weights,
}
