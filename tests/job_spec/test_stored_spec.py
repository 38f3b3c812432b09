"""The stored spec of a run: it keeps the defaults that it began with, and refuses what the user has changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from drivetrain.job import Job
from drivetrain.job_spec import load_job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import COPY, WRITTEN_FILE, compare_stored_spec, store_spec
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from tests.paths import ROOT

TEXT = """name: a
task: image-classification
data: {train: data}
train: {epochs: 3, optimizer: sgd, loss: {name: focal, gamma: 3.0}}
limits: {cpus: 1}
"""


def load(tmp_path: Path, text: str, *assignments: str) -> Job:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "a.yaml").write_text(text)
    return load_job.load(tmp_path / "a.yaml", assignments)


def store(tmp_path: Path, job: Job, changes: Mapping[str, object]) -> Path:
    """Store the spec as a version with other defaults would; None for a key that it does not have."""
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    store_spec(run, job)
    spec = change(job.dump(), changes)
    (run / "job.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return run


def change(spec: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    for key, value in changes.items():
        *above, name = key.split(".")
        block = spec
        for part in above:
            block = block[part]
        if value is None:
            del block[name]
        else:
            block[name] = value
    return spec


def read(job: Job, key: str) -> object:
    value: Any = job.dump()
    for part in key.split("."):
        value = value[part]
    return value


def changed(lines: list[str]) -> list[str]:
    return [line for line in lines if line[:1] in "+-" and line[1:2] not in "+-"]


DEFAULTS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "another default": (TEXT, {"train.clip_norm": 0.5}, {"train.clip_norm": 0.5}),
    "another default in a block that the user wrote in short": (
        TEXT,
        {"train.optimizer.lr": 0.3},
        {"train.optimizer.lr": 0.3, "train.optimizer.name": "sgd"},
    ),
    "another default beside a key of the user": (TEXT, {"train.loss.label_smoothing": 0.2}, {"train.loss.gamma": 3.0}),
    "another block by default": (TEXT, {"train.schedule": {"name": "step"}}, {"train.schedule.name": "step"}),
    "a new key": (TEXT, {"data.path_column": None, "train.seed": None}, {"train.seed": 0}),
    "a key that no longer exists": (TEXT, {"train.forgotten": 3, "gone": {"a": 1}}, {"train.epochs": 3}),
}


@pytest.mark.parametrize(("text", "stored", "kept"), DEFAULTS.values(), ids=DEFAULTS)
def test_a_run_ends_with_the_defaults_that_it_began_with(
    tmp_path: Path, text: str, stored: dict[str, object], kept: dict[str, object]
) -> None:
    job = load(tmp_path, text)
    run = store(tmp_path, job, stored)
    comparison = compare_stored_spec(run, job)
    assert comparison.lines == []
    for key, value in kept.items():
        assert read(comparison.job, key) == value
    assert comparison.job.model_fields_set == job.model_fields_set
    assert comparison.job.train.model_fields_set == job.train.model_fields_set
    # Its child processes read the copy of the job file, and what the run stores.
    store_spec(run, comparison.job)
    source = SpecSource(tmp_path / "a.yaml").read().copy_to(run, comparison.job)
    assert source.load().dump() == comparison.job.dump()


CHANGES = {
    "another value": (TEXT.replace("epochs: 3", "epochs: 4"), (), {}, ["-  epochs: 3", "+  epochs: 4"]),
    "a value by --set": (TEXT, ("train.epochs=4",), {}, ["-  epochs: 3", "+  epochs: 4"]),
    "a key that the user removed": (TEXT.replace("epochs: 3, ", ""), (), {}, ["-  epochs: 3", "+  epochs: 10"]),
    "a key that the user added": (TEXT, ("train.clip_norm=0.5",), {}, ["-  clip_norm: 1.0", "+  clip_norm: 0.5"]),
    "the old default, written now": (
        TEXT,
        ("train.clip_norm=1.0",),
        {"train.clip_norm": 0.5},
        ["-  clip_norm: 0.5", "+  clip_norm: 1.0"],
    ),
}


@pytest.mark.parametrize(("text", "assignments", "stored", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_the_user_changed_is_refused(
    tmp_path: Path, text: str, assignments: tuple[str, ...], stored: dict[str, object], expected: list[str]
) -> None:
    run = store(tmp_path, load(tmp_path, TEXT), stored)
    assert changed(compare_stored_spec(run, load(tmp_path, text, *assignments)).lines) == expected


def test_a_key_of_the_user_that_no_longer_exists(tmp_path: Path) -> None:
    """The file without it is another one: the run did what the key says."""
    job = load(tmp_path, TEXT)
    run = store(tmp_path, job, {"train.forgotten": 3})
    written = run / COPY / WRITTEN_FILE
    written.write_text(json.dumps({**json.loads(written.read_text()), "train.forgotten": "a.yaml:4:9"}))
    assert compare_stored_spec(run, job).lines == ["-train.forgotten"]
    assert compare_stored_spec(run, job, ("train",)).lines == []


def test_a_key_that_may_change_returns_to_its_default(tmp_path: Path) -> None:
    run = store(tmp_path, load(tmp_path, TEXT), {"checkpoint.every": "7m"})
    comparison = compare_stored_spec(run, load(tmp_path, TEXT.replace("{cpus: 1}", "{}")), MAY_CHANGE_ON_RESUME)
    assert comparison.lines == []
    assert read(comparison.job, "limits.cpus") is None
    assert read(comparison.job, "checkpoint.every") == "7m"


def test_settings_of_another_class_have_their_own_defaults(tmp_path: Path) -> None:
    """The trial of a sweep, or an extension, may choose another optimizer or schedule."""
    run = store(tmp_path, load(tmp_path, TEXT), {"train.optimizer.lr": 0.3})
    job = load(tmp_path, TEXT, "train.optimizer=adamw")
    assert compare_stored_spec(run, job).job.train.optimizer == job.train.optimizer


@pytest.mark.parametrize(
    ("before", "now"), [({"a": 1}, {"a": True}), ({"a": 16}, {"a": 16.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
)
def test_another_type_or_order_is_a_change(tmp_path: Path, before: dict[str, object], now: dict[str, object]) -> None:
    text = (
        "name: a\ntask: custom\ndata: {file: a.py, arguments: %s}\nmodel: {file: a.py}\ntrain: {loss: cross-entropy}\n"
    )
    (tmp_path / "a.py").write_text("def build(**arguments): ...\n\n\ndef train_data(**arguments): ...\n")
    (tmp_path / "run").mkdir()
    jobs = [
        load_job.check(load_job.read_spec(write(tmp_path, text % json.dumps(arguments)), ()))
        for arguments in (before, now)
    ]
    store_spec(tmp_path / "run", jobs[0])
    assert compare_stored_spec(tmp_path / "run", jobs[0]).lines == []
    assert compare_stored_spec(tmp_path / "run", jobs[1]).lines


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "a.yaml").write_text(text)
    return tmp_path / "a.yaml"


def list_numbers(spec: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    for key, value in spec.items():
        if isinstance(value, Mapping):
            yield from list_numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_number_may_have_another_default(tmp_path: Path, path: Path) -> None:
    job = load_job.check(load_job.read_spec(path, ()))
    run = store(tmp_path, job, {})
    spec, written = job.dump(), json.loads((run / COPY / WRITTEN_FILE).read_text())
    changes = {}
    for key, number in list_numbers(spec):
        value = number + 1 if isinstance(number, int) else number * 0.5 + 0.01
        with contextlib.suppress(ValidationError):
            type(job).model_validate(change(job.dump(), {key: value}))
            changes |= {} if key in written else {key: value}
    assert len(changes) > 2
    comparison = compare_stored_spec(store(tmp_path, job, changes), job)
    assert comparison.lines == []
    assert comparison.job.dump() == change(spec, changes)
