"""Data sets, and the job specs that `drivetrain init` drafts for them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from drivetrain.cli import main
from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec

Rows = Iterable[Sequence[object]]


def draft_job(*arguments: object, assignments: Sequence[str] = ()) -> Job:
    """The job that `init` writes; its file is valid and alone, and the data can be trained on."""
    before = set(Path().glob("*.yaml"))
    assert main.main(["init", *map(str, arguments)]) == 0
    (new,) = set(Path().glob("*.yaml")) - before
    job = job_spec.load(new, assignments)
    assert len(load(job).train)
    return job


def read_refusal(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 3) -> str:
    """The error of `init`, which has three parts and writes nothing."""
    assert main.main(["init", *map(str, arguments)]) == code
    error = capsys.readouterr().err
    assert "possible: " in error
    assert "do:  " in error
    assert not list(Path().glob("*.yaml"))
    return error


def write_table(name: str, header: Sequence[str], rows: Rows, **options: Any) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def write_images(folder: str, counts: dict[str, int], size: tuple[int, int] = (40, 32), mode: str = "RGB") -> Path:
    for name, count in counts.items():
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new(mode, size, 37 * number % 256).save(Path(folder) / name / f"{number}.png")
    return Path(folder)


def read_data_settings(job: Job) -> dict[str, Any]:
    """What a spec says about its data."""
    return job.data.model_dump(exclude_unset=True)
