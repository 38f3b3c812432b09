"""`drivetrain init`: a first spec from the data, valid whatever they are, with the reason of each value."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from runtime.cli import main
from runtime.data.load import load
from runtime.data.sample_data import write as sample_data
from runtime.data.survey import table_sample
from runtime.job import Job
from runtime.job.draft import flow, run_name, scalar
from runtime.job_spec import load as job_spec
from runtime.job_spec.yaml_file import parse
from runtime.training.evaluation.validation import evaluate
from tests import tiny
from tests.paths import ROOT

Rows = Iterable[Sequence[object]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, where specs go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*words: object, assignments: Sequence[str] = ()) -> Job:
    """The job that `init` writes; its file is valid and alone, and the data can be trained on."""
    before = set(Path().glob("*.yaml"))
    assert main.main(["init", *map(str, words)]) == 0
    (new,) = set(Path().glob("*.yaml")) - before
    job = job_spec.load(new, assignments)
    assert len(load(job).train)
    return job


def refused(capsys: pytest.CaptureFixture[str], *words: object, code: int = 3) -> str:
    """The error of `init`, which has three parts and writes nothing."""
    assert main.main(["init", *map(str, words)]) == code
    error = capsys.readouterr().err
    assert "possible: " in error
    assert "do:  " in error
    assert not list(Path().glob("*.yaml"))
    return error


def table(name: str, header: Sequence[str], rows: Rows, **options: Any) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def images(folder: str, counts: dict[str, int], size: tuple[int, int] = (40, 32), mode: str = "RGB") -> Path:
    for name, count in counts.items():
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new(mode, size, number).save(Path(folder) / name / f"{number}.png")
    return Path(folder)


def beginning(job: Job) -> dict[str, Any]:
    """What a spec says about its data."""
    return job.data.model_dump(exclude_unset=True)


def test_sample_images(capsys: pytest.CaptureFixture[str]) -> None:
    sample_data.write("images", Path("data/patterns"), 30, 0)
    job = made("data/patterns")
    assert (job.name, job.task) == ("patterns", "image-classification")
    assert beginning(job)["train"] == "data/patterns"
    text, shown = Path("patterns.yaml").read_text(), capsys.readouterr().out
    assert "30 images, 6 classes of 5 each: checks, dots, gradients, noise, rings, stripes" in text
    assert shown.startswith("patterns.yaml: image-classification")
    assert shown.endswith("next: drivetrain train patterns.yaml\n")
    # The reason stands beside every value that was looked up.
    assert all("#" in line for line in text.splitlines() if line.startswith("  image_size"))


def test_sample_texts() -> None:
    sample_data.write("texts", Path("reports"), 120, 0)
    job = made("reports")
    assert job.task == "text-classification"
    assert beginning(job)["text"] == "descripcion"
    assert list(beginning(job)["labels"]) == ["modo", "causa", "prioridad"]
    one = made("reports/reports.csv", "--target", "causa", "--output", "one.yaml")
    assert list(beginning(one)["labels"]) == ["causa"]


def test_sample_series() -> None:
    sample_data.write("series", Path("series"), 4000, 0)
    job = made("series")
    assert job.task == "series-classification"
    data = beginning(job)
    assert (data["train"], data["time"], data["group"], data["label"]) == (
        "series/train.csv",
        "time",
        "machine",
        ("regime",),
    )
    assert data["window"] == 16
    number = made("series", "--target", "load", "--output", "load.yaml")
    assert number.task == "series-regression"
    assert "load" not in beginning(number)["features"]


def test_sample_table() -> None:
    sample_data.write("table", Path("table"), 200, 0)
    job = made("table")
    assert job.task == "tabular-classification"
    assert (beginning(job)["target"], beginning(job)["ignore"]) == (("fails",), ("id",))
    assert "hours_left" in Path("table.yaml").read_text()  # the other number that could be meant
    number = made("table/train.parquet", "--label", "hours_left", "--output", "hours.yaml")
    assert number.task == "tabular-regression"


def test_digits() -> None:
    job = made(ROOT / "jobs" / "data" / "digits.npz")
    assert job.task == "image-classification"
    assert "1,797 images of 8 x 8 pixels, uint8, 10 classes: 3 183," in Path("digits.yaml").read_text()


@pytest.mark.parametrize("held", ["val", "validation", "valid"])
def test_a_data_set_in_parts(held: str) -> None:
    counts = {"good": 4, "bad": 3}
    for part in ("train", held, "test"):
        images(f"photos/{part}", counts)
    data = beginning(made("photos"))
    assert (data["train"], data["validation"]) == ("photos/train", f"photos/{held}")
    assert "photos/test" in Path("photos.yaml").read_text()


def test_a_part_with_other_classes_is_not_used() -> None:
    images("photos/train", {"good": 4, "bad": 3})
    images("photos/val", {"good": 4, "worse": 3})
    assert beginning(made("photos"))["validation"] == 0.2
    assert "classes that training lacks: worse" in Path("photos.yaml").read_text()


def test_folders_around_class_folders() -> None:
    images("download/set/photos", {"good": 4, "bad": 3})
    images("download/set/photos", {"good/older": 4})
    assert beginning(made("download"))["train"] == "download/set/photos"
    assert "11 images" in Path("download.yaml").read_text()


def test_grey_uneven_and_single_images() -> None:
    job = made(images("photos", {"good": 40, "bad": 5, "odd": 1}, size=(28, 28), mode="L"))
    text = Path("photos.yaml").read_text()
    assert "augment" not in beginning(job)
    assert beginning(job)["image_size"] == 32
    assert "all grey" in text
    assert "classes with one sample, which stays in training: odd" in text


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"good": 4}, "4 images of one class: good"),
        ({"a": 1, "b": 1}, "one image of each of 2 classes"),
        ({"a": 0, "b": 0}, "has no images in class folders"),
    ],
)
def test_folders_that_are_no_classes(counts: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, images("photos", counts))


def test_what_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert "has no images in class folders" in refused(capsys, "empty")
    assert "nothing is not there" in refused(capsys, "nothing")
    Path("letter.docx").write_bytes(b"PK\3\4")
    assert "is of no known kind" in refused(capsys, "letter.docx")
    for name in ("zero.csv", "zero.jsonl", "zero.parquet", "zero.npz"):
        Path(name).write_bytes(b"")
        refused(capsys, name)
    table("header.csv", ["a", "b"], [])
    assert "no rows" in refused(capsys, "header.csv")
    images("broken", {"a": 1, "b": 2})
    for path in Path("broken").rglob("*.png"):
        path.write_bytes(b"no image")
    assert "none of 3 images could be decoded" in refused(capsys, "broken")


def test_a_spanish_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Semicolons and Latin-1 are refused with the commands that convert them; then it goes on."""
    rows = [[f"Avería número {i} en el tren de laminación", ("eléctrica", "mecánica")[i % 2]] for i in range(40)]
    path = table("averías de año.csv", ["descripción", "clase"], rows, encoding="latin-1", delimiter=";")
    error = refused(capsys, path)
    assert "iconv -f LATIN1 -t UTF-8" in error
    path.write_text(path.read_text("latin-1"), "utf-8")
    error = refused(capsys, path)
    assert "separated by semicolons" in error
    subprocess.run(error.split("convert it: ")[1].split("; numbers")[0], shell=True, check=True)
    job = made("averías de año-commas.csv")
    assert (job.name, job.task) == ("averias-de-ano-commas", "text-classification")
    assert (beginning(job)["text"], list(beginning(job)["labels"])) == ("descripción", ["clase"])


def test_an_id_and_a_date_are_ignored() -> None:
    drawn = random.Random(0)
    rows = [
        [
            f"K-{i:04}",
            f"2026-{drawn.randint(1, 12):02}-{drawn.randint(1, 28):02}",
            i * 7919 % 10007,
            drawn.random(),
            drawn.choice(["Acme", "Bolt"]),
            drawn.choice(["yes", "no"]),
        ]
        for i in range(300)
    ]
    job = made(table("customers.csv", ["code", "since", "customer_id", "load", "maker", "left"], rows))
    assert job.task == "tabular-classification"
    data = beginning(job)
    assert (data["ignore"], data["target"]) == (("code", "since", "customer_id"), ("left",))
    text = Path("customers.yaml").read_text()
    assert "since (a date), customer_id (an identifier)" in text
    assert "other candidates: load, maker" in text


def test_a_number_to_predict() -> None:
    rows = [[i % 7, i * 0.37 % 5, 100 + i * 1.13 % 17] for i in range(200)]
    job = made(table("houses.csv", ["rooms", "age", "price"], rows))
    assert (job.task, beginning(job)["target"]) == ("tabular-regression", ("price",))
    assert made("houses.csv", "--target", "age", "--output", "age.yaml").task == "tabular-regression"
    rooms = made("houses.csv", "--target", "rooms", "--task", "tabular-regression", "--output", "rooms.yaml")
    assert rooms.task == "tabular-regression"
    assert made("houses.csv", "--target", "rooms", "--output", "classes.yaml").task == "tabular-classification"


def test_several_labels_and_several_numbers() -> None:
    rows = [[i * 0.37 % 5, i % 2, i // 2 % 2, i * 0.11 % 3] for i in range(100)]
    table("rows.csv", ["a", "hot", "wet", "b"], rows)
    labels = made("rows.csv", "--target", "hot", "--target", "wet")
    assert (labels.task, beginning(labels)["target"]) == ("tabular-classification", ("hot", "wet"))
    numbers = made("rows.csv", "--target", "a", "--target", "b", "--output", "numbers.yaml")
    assert numbers.task == "tabular-regression"


def test_rows_without_a_target_and_spoilt_numbers() -> None:
    rows = [["?" if i == 7 else i * 0.5, i * 0.37 % 5, "" if i % 10 == 0 else ("a", "b")[i % 2]] for i in range(200)]
    data = beginning(made(table("rows.csv", ["size", "age", "target"], rows)))
    assert data["numeric"] == ("size",)
    assert 0.1 < data["bad_samples"] < 0.2


def test_json_lines_of_texts() -> None:
    rows = [
        {"said": f"this is text number {i} of many", "feeling": ("good", "bad")[i % 2], "stars": i % 5}
        for i in range(60)
    ]
    Path("said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = made("said.jsonl")
    assert (job.task, list(beginning(job)["labels"])) == ("text-classification", ["feeling", "stars"])
    assert "one output for each of feeling, stars" in Path("said.yaml").read_text()
    job = made("said.jsonl", "--task", "tabular-classification", "--output", "rows.yaml")
    assert beginning(job)["ignore"] == ("said",)


def test_a_name_is_no_text_to_learn_from() -> None:
    header = ["PassengerId", "Survived", "Pclass", "Name", "Sex", "Age", "SibSp", "Ticket", "Fare", "Embarked"]
    drawn = random.Random(0)
    rows = [
        [
            *(i + 1, drawn.randint(0, 1), drawn.randint(1, 3), f"Person, Mr. Nr {i} of Many", drawn.choice("mf")),
            *(
                drawn.choice(["", drawn.randint(1, 80)]),
                drawn.randint(0, 5),
                f"A{i * 7}",
                drawn.random(),
                drawn.choice("SC"),
            ),
        ]
        for i in range(300)
    ]
    job = made(table("titanic.csv", header, rows))
    assert (job.task, beginning(job)["target"]) == ("tabular-classification", ("Survived",))
    assert beginning(job)["ignore"] == ("PassengerId", "Name", "Ticket")
    assert "to train on them: --task text-classification" in Path("titanic.yaml").read_text()


def test_numbers_with_decimal_commas_are_not_taken_for_categories(capsys: pytest.CaptureFixture[str]) -> None:
    path = table("rows.csv", ["load", "kind"], [[f"{i % 9},5", "ab"[i % 2]] for i in range(40)])
    assert "load (numbers with decimal commas; use decimal points)" in refused(capsys, path)


def test_rows_with_dates_that_may_be_a_series() -> None:
    rows = [[f"2026-{1 + i // 28:02}-{1 + i % 28:02}", i * 0.37 % 5, i * 7 % 11 % 2] for i in range(200)]
    assert made(table("days.csv", ["day", "sales", "promo"], rows)).task == "tabular-classification"
    assert "to train on windows over day: --task series-regression --target COLUMN" in Path("days.yaml").read_text()
    job = made("days.csv", "--task", "series-regression", "--target", "sales", "--output", "sales.yaml")
    assert (beginning(job)["time"], beginning(job)["label"]) == ("day", ("sales",))


def test_a_manifest_of_images() -> None:
    images("photos", {"a": 5, "b": 5})
    rows = [[f"{name}/{i}.png", name, i] for name in "ab" for i in range(5)]
    job = made(table("photos/list.csv", ["file name", "kind", "number"], rows), "--output", "list.yaml")
    assert job.task == "image-classification"
    data = beginning(job)
    assert (data["train"], data["path_column"], data["label_column"]) == ("photos/list.csv", "file name", "kind")


@pytest.mark.parametrize(
    ("arrays", "task"),
    [
        ({"images": (np.uint8, 20, 12, 12, 3), "labels": 2}, "image-classification"),
        ({"x": (np.float32, 20, 16, 3), "y": 3}, "series-classification"),
        ({"x": (np.float64, 20, 2), "y": np.linspace(0, 1, 20)}, "series-regression"),
        ({"x": (np.float32, 20, 16, 3), "y": np.zeros((20, 2)) + np.arange(20)[:, None]}, "series-regression"),
        ({"x": (np.float32, 20, 8, 8, 3), "y": 3}, ""),
        ({"data": (np.float32, 20, 16, 3)}, ""),
        ({"images": (np.uint8, 20, 12, 12, 3), "labels": 1}, ""),
    ],
)
def test_arrays(arrays: dict[str, Any], task: str, capsys: pytest.CaptureFixture[str]) -> None:
    def array(value: Any) -> Any:
        if isinstance(value, tuple):
            return np.zeros(value[1:], value[0])
        return np.arange(20) % value if isinstance(value, int) else value

    np.savez("arrays.npz", **{name: array(value) for name, value in arrays.items()})
    if task:
        assert made("arrays.npz").task == task
    else:
        refused(capsys, "arrays.npz")


def test_odd_names() -> None:
    """Spaces, umlauts, quotes and what YAML would read as something else."""
    rows = [[i * 0.5, i * i % 17, ("ja", "nein")[i % 2]] for i in range(50)]
    names = ["größe: [mm]", "no", '"y" # {z}']
    job = made(table("Größen & Maße/~ 2026 'x'.csv", names, rows), "--target", names[2])
    assert (job.name, beginning(job)["target"]) == ("2026-x", (names[2],))
    assert beginning(made(images("~ä ö", {"ja": 3, "off: 1": 3})))["train"] == "./~ä ö"


def test_columns_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    table("rows.csv", ["load", "maker"], [[i * 0.3, "ab"[i % 2]] for i in range(30)])
    assert 'did you mean "maker"?' in refused(capsys, "rows.csv", "--target", "make")
    assert 'no column "load" of texts' in refused(capsys, "rows.csv", "--text", "load")
    assert "has no columns for it" in refused(capsys, "rows.csv", "--task", "text-classification", code=2)
    assert "no table of readings over time" in refused(capsys, "rows.csv", "--task", "series-regression")
    images("photos", {"a": 3, "b": 3})
    assert "a folder of images has no columns" in refused(capsys, "photos", "--target", "a", code=2)
    assert "holds images in folders" in refused(capsys, "photos", "--task", "tabular-regression", code=2)


def test_no_file_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    images("photos", {"a": 3, "b": 3})
    Path("photos.yaml").write_text("mine")
    assert main.main(["init", "photos"]) == 2
    assert "photos.yaml is there already" in capsys.readouterr().err
    assert Path("photos.yaml").read_text() == "mine"
    Path("jobs").mkdir()
    assert main.main(["init", "photos", "--output", "jobs/second.yaml"]) == 0
    job = job_spec.load("jobs/second.yaml")
    assert job.resolve(job.data.train).samefile("photos")
    assert main.main(["init", "photos", "--output", "none/second.yaml"]) == 7


def test_a_large_table_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[i * 0.37 % 5, "abc"[i // 10_000]] for i in range(30_000)]
    table("large.csv", ["load", "class"], rows)
    parquet.write_table(
        pyarrow.table(dict(zip(("load", "class"), zip(*rows, strict=True), strict=True))), "large.parquet"
    )
    Path("large.jsonl").write_text("\n".join(json.dumps({"load": a, "class": b}) for a, b in rows))
    monkeypatch.setattr(table_sample, "WHOLE", 1000)
    for kind, least, most in (("csv", 25_000, 35_000), ("parquet", 30_000, 30_000), ("jsonl", 25_000, 35_000)):
        sample = table_sample.read(Path(f"large.{kind}"))
        assert (len(sample.table), sample.complete) == (5000, False)
        assert least <= sample.rows <= most
        # The first rows are of one class; the name of the column is enough.
        assert made(f"large.{kind}", "--output", f"{kind}.yaml").task == "tabular-classification"


def test_many_images_are_not_all_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.data.images import decode

    opened: list[str] = []
    look: Callable[[str], Any] = decode.look
    monkeypatch.setattr(decode, "look", lambda path: opened.append(path) or look(path))
    images("photos", {"a": 2, "b": 2})
    for name in "ab":
        for number in range(2, 1000):
            os.link(f"photos/{name}/0.png", f"photos/{name}/{number}.png")
    assert main.main(["init", "photos"]) == 0
    assert len(opened) == 64
    assert "2,000 images, 2 classes of 1,000 each" in Path("photos.yaml").read_text()


def test_without_torch(here: Path) -> None:
    """Neither imports nor a look at the data load it."""
    images("photos", {"a": 3, "b": 3})
    table("rows.csv", ["load", "maker"], [[i * 0.3, "ab"[i % 2]] for i in range(30)])
    np.savez("arrays.npz", x=np.zeros((20, 8)), y=np.arange(20) % 2)
    code = (
        "import sys; sys.modules['torch'] = None\nfrom runtime.cli import main\n"
        "sys.exit(max(main.main(['init', name]) for name in ('photos', 'rows.csv', 'arrays.npz')))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    assert len(list(here.glob("*.yaml"))) == 3


def test_names_and_texts_in_yaml() -> None:
    for text in (
        "a b",
        "ñandú/x-1.csv",
        "no",
        "Null",
        "12",
        "1e3",
        "- a",
        "a: b",
        "#",
        "~",
        "",
        " a",
        "a\nb",
        "\u2028",
        "é\x07",
        "😀 [",
        "/x/y",
        "../data/x",
        ".",
    ):
        assert parse(f"k: {scalar(text)}\nl: {flow([text, 'x'])}", "x").data == {"k": text, "l": [text, "x"]}
    assert [run_name(text) for text in ("Größe Nr. 1", "--", "日本", "x" * 80)] == [
        "Grosse-Nr.-1",
        "job",
        "job",
        "x" * 64,
    ]


def _cell(drawn: random.Random) -> object:
    kinds = [
        lambda: drawn.randint(-5, 5),
        lambda: round(drawn.gauss(0, 1e3), 3),
        lambda: drawn.choice(["", "NaN", "null", "-", "yes", "no", "true", "1e400", "inf", "007"]),
        lambda: drawn.choice(["a", "b", "Ä", "x y z w v", "a.png", "2026-01-01", "2026-01-01 10:00:00", "12:30"]),
        lambda: "".join(chr(drawn.choice([*range(32, 127), 0xE9, 0x2028, 0x1F600, 9, 10])) for _ in range(12)),
    ]
    return drawn.choice(kinds)()


def _any_file(drawn: random.Random, number: int) -> Path:
    """A small file that may or may not be data."""
    header = drawn.sample(
        ["id", "time", "date", "label", "text", "y", "a: b", "no", "größe", "x", "path", "t", "n"], drawn.randint(1, 6)
    )
    columns = [drawn.choice([None, [_cell(drawn) for _ in range(drawn.randint(1, 3))]]) for _ in header]
    rows = [[_cell(drawn) if c is None else drawn.choice(c) for c in columns] for _ in range(drawn.randint(0, 80))]
    if "time" in header and drawn.random() < 0.7:
        for index, row in enumerate(rows):
            row[header.index("time")] = index
    kind = drawn.choice(["csv", "csv", "csv", "tsv", "jsonl", "parquet", "npz", "bytes"])
    path = Path(f"file-{number}.{kind}")
    if kind in ("csv", "tsv"):
        table(str(path), header, rows, delimiter="\t" if kind == "tsv" else drawn.choice(",,,,;"))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(header, row, strict=True))) for row in rows), "utf-8")
    elif kind == "parquet":
        cells = {name: [str(row[i]) for row in rows] for i, name in enumerate(header)}
        parquet.write_table(pyarrow.table(cells), path)
    elif kind == "npz":
        shape = [drawn.randint(0, 12) for _ in range(drawn.randint(0, 4))]
        names = drawn.choice([("images", "labels"), ("x", "y"), ("a",)])
        first = np.zeros(shape, drawn.choice(["u1", "f4", "i8", "?", "U3", "c8"]))
        rest = {name: np.arange(drawn.randint(0, 12)) % drawn.randint(1, 4) for name in names[1:]}
        np.savez(path, **{names[0]: first}, **rest)
    if kind == "bytes" or drawn.random() < 0.15:
        path = path.with_suffix(drawn.choice([".csv", ".jsonl", ".parquet", ".npz"]))
        given = path.read_bytes() if path.exists() else drawn.randbytes(200)
        path.write_bytes(given[: drawn.randint(0, len(given))] + drawn.randbytes(drawn.randint(0, 5)))
    return path


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_given_nothing_invalid_is_written(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred small files: each ends in a valid spec, or in an error of three parts and no file."""
    drawn = random.Random(seed)
    for number in range(25):
        path, output = _any_file(drawn, number), Path(f"{number}.yaml")
        options = ["--task", drawn.choice(list(TASKS))] if drawn.random() < 0.3 else []
        options += ["--target", drawn.choice(["label", "y", "n"])] if drawn.random() < 0.2 else []
        code = main.main(["init", str(path), "--output", str(output), *options])
        error = capsys.readouterr().err
        assert (code == 0) == output.exists(), (path, error)
        if code == 0:
            job_spec.load(output)
        else:
            assert code in (2, 3)
            assert "possible: " in error, (path, error)
            assert "would not be valid" not in error, (path, error)


TASKS = (
    *("image-classification", "text-classification", "series-classification", "series-regression"),
    *("tabular-classification", "tabular-regression"),
)


@pytest.mark.parametrize(
    ("kind", "size", "smaller"),
    [
        ("images", 24, "data.image_size=16"),
        ("texts", 40, "model.width=16"),
        ("series", 400, "train.batch_size=128"),
        ("table", 60, "model.hidden=[16]"),
    ],
)
def test_a_made_spec_trains(kind: str, size: int, smaller: str, here: Path) -> None:
    """One epoch and an evaluation."""
    sample_data.write(kind, Path("data"), size, 0)
    run = tiny.plain(made("data", assignments=[smaller]), here)
    run.train_mode()
    run.set_rate()
    losses = [float(run.step(run.prepared(batch, 0), 0).loss) for batch in run.batches.epoch(0)]
    assert losses
    assert np.isfinite(losses).all()
    assert 0 <= evaluate(run)[0][run.job.best()] <= 1
