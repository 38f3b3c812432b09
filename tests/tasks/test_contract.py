"""The contract of every kind of data; adding one to the registry adds it here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

from drivetrain.data.load_data import check, load, load_new
from drivetrain.data.survey.look import look
from drivetrain.data.survey.settings import SurveyRequest
from drivetrain.job import Job
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.job_spec import load_job
from drivetrain.models import dummy_inputs
from drivetrain.models.build import build
from drivetrain.models.inspection import inspect_workload
from drivetrain.tasks import JOBS, MODALITIES, Modality, find_stored_modality, modality_of
from drivetrain.tasks.modality import Lazy
from tests.own_job import write_job
from tests.paths import PACKAGE
from tests.task_cases import CASES

FUNCTIONS = [
    field.name for field in dataclasses.fields(Modality) if "Lazy" in str(field.type) or "Callable" in str(field.type)
]
EXAMPLES = {"images": "image folders", "sounds": "sounds", "texts": "texts", "series": "series", "table": "table"}


def find_function(function: object) -> object:
    """The function that a description names; None if the kind of data does not need it."""
    if not isinstance(function, Lazy):
        return None
    module, _, name = function.path.rpartition(".")
    return getattr(importlib.import_module(f"drivetrain.{module}"), name)


def read_example(kind: str, folder: Path) -> Job:
    """A job of this kind with its files."""
    if kind == "own":
        return load_job.load(write_job(folder))
    case = CASES[EXAMPLES[kind]]
    case.files(folder)
    (folder / "job.yaml").write_text(f"name: t\n{case.text}")
    return load_job.load(folder / "job.yaml")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_functions_take_the_same_arguments(name: str) -> None:
    """What mypy cannot know of functions that are named in texts."""
    functions = {kind: find_function(getattr(modality, name)) for kind, modality in MODALITIES.items()}
    parameters = {
        kind: list(inspect.signature(function).parameters) for kind, function in functions.items() if callable(function)
    }
    assert len({tuple(names) for names in parameters.values()}) == 1, parameters


@pytest.mark.parametrize("task", [*JOBS.values(), EmbeddedJob])
def test_each_task_has_one_kind(task: type[Job]) -> None:
    assert sum(issubclass(task, modality.job) for modality in MODALITIES.values()) == 1


def test_nothing_else_asks_for_a_kind() -> None:
    """A branch on a task or on its class becomes a function or a fact of the description."""
    branch = re.compile(
        r"isinstance\((?:\w+\.)?job, (?!Job\))|task\.startswith|\bkind == \"(?:images|texts|series|table|own)\""
    )
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "tasks"]
    assert [path.name for path in paths if branch.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("kind", "columns"), [("texts", ["urgent"]), ("series", ["state"]), ("table", ["price"])])
def test_a_table_is_drafted(kind: str, columns: list[str], tmp_path: Path) -> None:
    job = read_example(kind, tmp_path)
    path = job.resolve(job.data.train)
    draft = look(SurveyRequest(path, tmp_path, targets=tuple(columns)))
    assert modality_of(JOBS[draft.task]).kind == kind


@pytest.mark.parametrize("kind", MODALITIES)
def test_its_network_computes_its_samples(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = read_example(kind, tmp_path)
    modality, dataset = modality_of(job), load(job)
    assert modality is MODALITIES[kind] is find_stored_modality(dataset.preprocessing)
    network = build(job, dataset).module.eval()
    outputs = network(*dummy_inputs.make_inputs(dataset.preprocessing, 3, seed=0))
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    assert {name: values.shape for name, values in outputs.items()} == {
        name: torch.Size((3, head.outputs)) for name, head in dataset.heads.items()
    }
    workload = inspect_workload(dataset, network)
    assert workload.ragged == modality.expected.ragged
    assert kind == "own" or all(workload.has(layer) for layer in modality.expected.layers)
    features = modality.make_features(dataset)
    assert modality.is_user_code == (features is None)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_new_samples_are_read_as_the_validation_data(kind: str, tmp_path: Path) -> None:
    job = read_example(kind, tmp_path)
    dataset = load(job)
    path = job.resolve(str(job.data_path("validation")))
    new = load_new([path], dataset.preprocessing, dataset.heads, labelled=True)
    assert len(new.split) == len(dataset.validation)
    assert all(torch.equal(new.split.targets[name], dataset.validation.targets[name]) for name in dataset.heads)
    if not modality_of(job).has_sample_files:
        assert check(job)[0] == len(dataset.train)
