"""Every file of data that docs/ show is made as it is shown, and the spec beside it trains on it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import drivetrain
from drivetrain.cli import main
from drivetrain.job_spec import load_job as job_spec
from jobs.samples import write as samples
from tests import own_job, tiny
from tests.paths import DOCS
from tests.supervisor import circle_training

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
FILES = {
    file: (page, text)
    for page, page_text in PAGES.items()
    for _, file, text in re.findall(r"```(\w+) (\S+)\n(.*?)```", page_text, re.DOTALL)
}
SPECS = {
    re.search(r"name: (\S+)", text)[1]: text
    for page in ("your-data.md", "data-sources.md")
    for text in re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)
}
SAMPLES = 60
DRAWN = numpy.random.default_rng(0)


def image_folders(folder: Path) -> None:
    """The first block of the page, with more images in the same folders."""
    example_paths = re.findall(r"^(data/parts/.*)$", PAGES["your-data.md"], re.MULTILINE)
    assert len(example_paths) == 2
    for number in range(SAMPLES // 2):
        for example_path in map(Path, example_paths):
            image_path = folder / example_path.with_stem(f"{int(example_path.stem) + number:03}")
            image_path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(DRAWN.integers(0, 256, (40, 50, 3)).astype(numpy.uint8)).save(image_path)


def table(folder: Path, file: str) -> None:
    """The rows that are shown, again and again; paths, ids and times count on."""
    head, *rows = csv.reader(io.StringIO(FILES[file][1]))
    with (folder / file).open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target)
        writer.writerow(head)
        count = SAMPLES * 40 if "time" in head else SAMPLES
        writer.writerows([_later(cell, number) for cell in row] for number in range(count // len(rows)) for row in rows)


def _later(cell: str, number: int) -> str:
    if re.fullmatch(r"\d{4}-.*:\d\d", cell):
        return str(datetime.fromisoformat(cell) + timedelta(seconds=number))
    if match := re.fullmatch(r"(parts/\w+/)(\d+)(\.\w+)", cell):
        return f"{match[1]}{int(match[2]) + number:03}{match[3]}"
    return f"{float(cell) + number % 7:g}" if re.fullmatch(r"\d+\.\d+", cell) else cell


def run_page_code(folder: Path, file: str, **values: Any) -> None:
    """What the lines of Python on the page write."""
    exec(FILES[file][1].replace(f'"{file}"', repr(str(folder / file))), {"numpy": numpy, **values})
    assert (folder / file).exists()


def arrays(folder: Path, file: str) -> None:
    classes = numpy.arange(SAMPLES) % 2
    values: Mapping[str, Mapping[str, Any]] = {
        "data/parts.npz": {
            "images": DRAWN.random((SAMPLES, 20, 24, 3)),
            "labels": numpy.array(["good", "broken"])[classes],
        },
        "data/windows.npz": {"x": DRAWN.normal(size=(SAMPLES, 30, 3)), "y": classes},
    }
    run_page_code(folder, file, **values[file])


def write_sounds(folder: Path, file: str) -> None:
    """A manifest of sounds, of which three each are from one recording."""
    paths = [path for path in samples.write("audio", folder / "data", SAMPLES) if "train" in path.parts]
    rows = [[path.relative_to(folder / "data"), path.parent.name, f"r{n // 3}"] for n, path in enumerate(paths)]
    with (folder / file).open("w", newline="", encoding="utf-8") as target:
        csv.writer(target).writerows([["path", "label", "recording"], *rows])


def make_file(folder: Path, file: str) -> None:
    """One file of data as the page shows it."""
    (folder / "data").mkdir(exist_ok=True)
    if file == "data/birds.csv":
        write_sounds(folder, file)
        return
    if file in ("data/parts", "data/parts.csv", "data/damage.csv", "data/wear.csv"):
        image_folders(folder)
    if file.endswith(".npz"):
        arrays(folder, file)
    elif file.endswith(".jsonl"):
        (folder / file).write_text(FILES[file][1] * (SAMPLES // 2), encoding="utf-8")
    elif file.endswith(".parquet"):
        from pyarrow import csv as tables

        table(folder, file.replace(".parquet", ".csv"))
        parquet.write_table(tables.read_csv(folder / file.replace(".parquet", ".csv")), folder / file)
    elif file == "data/machines-2024.csv":
        for year in (2024, 2025):
            table(folder, "data/machines.csv")
            (folder / "data/machines.csv").rename(folder / f"data/machines-{year}.csv")
    elif file == "data/load.csv":
        sep, head, *rows, last = FILES[file][1].splitlines()
        lines = [sep, head, *(rows * (SAMPLES // 2)), last]
        (folder / file).write_text("\r\n".join(lines), encoding="windows-1252")
    elif file.endswith(".csv"):
        table(folder, file)


TRAINED = {
    "data/parts": "parts",
    "data/parts.csv": "parts",
    "data/parts.npz": "parts",
    "data/damage.csv": "damage",
    "data/wear.csv": "wear",
    "data/reports.csv": "reports",
    "data/reports.jsonl": "reports",
    "data/answers.csv": "answers",
    "data/readings.csv": "machines",
    "data/windows.npz": "windows",
    "data/machines.parquet": "failures",
    "data/machines.csv": "failures",
    "data/load.csv": "load",
    "data/machines-2024.csv": "tested",
    "data/birds.csv": "birds",
}
"""The files of your-data.md, and the name of the spec that trains on each."""
PAIRS = [*TRAINED.items(), ("data/parts.csv", "finetuned")]
ELSEWHERE = {"imdb", "sensors"}
"""Specs of data that is not on this machine: pretrained/test_hub_dataset.py and job_spec/test_stored_data.py have a hub and a store of their own."""
MADE_OTHERWISE = ("data/birds.csv", "data/parts", "data/machines.parquet", "data/machines-2024.csv")
"""Files that the page does not show."""


def test_every_file_and_every_spec_is_run() -> None:
    assert set(FILES) == {file for file in TRAINED if file not in MADE_OTHERWISE} | {"new.npz"}
    assert set(SPECS) == {name for _, name in PAIRS} | ELSEWHERE


def job_of_images(text: str) -> bool:
    return "task: image-" in text


@pytest.mark.parametrize(("file", "name"), PAIRS)
def test_a_spec_trains_on_the_data_that_is_shown(
    tmp_path: Path, file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    make_file(tmp_path, file)
    text, count = re.subn(r"train: data/[\w.-]+", f"train: {file}", SPECS[name])
    assert count == 1
    # A pretrained network and a large one are not what is tried here.
    text = re.sub(r"^model: (resnet18|\{source).*\n", "", text, flags=re.MULTILINE)
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    job = job_spec.load(tmp_path / "job.yaml", ["data.image_size=16"] if job_of_images(text) else [])
    plain_run = tiny.assemble_plain_run(job, tmp_path)
    assert all(numpy.isfinite(tiny.losses(plain_run, 1)))
    assert len(plain_run.dataset.train) > len(plain_run.dataset.validation) > 0


def test_new_samples_of_an_own_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own_job.write_job(tmp_path)
    assert main.main(["train", str(path), "--runs", str(tmp_path / "runs"), "--set", "optimize.measure=off"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    inputs = DRAWN.normal(size=(12, 4)).astype(numpy.float32)
    run_page_code(tmp_path, "new.npz", inputs=inputs, targets=(inputs.sum(1) > 0).astype(int))
    for command in (
        ["predict", str(run), str(tmp_path / "new.npz")],
        ["evaluate", str(run), "--data", str(tmp_path / "new.npz")],
    ):
        assert main.main(command) == 0


def test_training_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that docs/library.md begins with."""
    from drivetrain.supervisor.run_lifecycle import RunLifecycle

    call, used = re.findall(r"^    (result\b.*)$", PAGES["library.md"], re.MULTILINE)
    monkeypatch.setattr(RunLifecycle, "report", lambda run, output: None)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "drivetrain": drivetrain,
        "network": circle_training.build_network(),
        "my_loss": torch.nn.functional.cross_entropy,
        "train_data": circle_training.make_circle(128),
        "validation_data": circle_training.make_circle(64, 1),
    }
    exec(f"{call}\nfound = {used}", names)
    assert names["found"][3] == Path("runs/wear-001")
