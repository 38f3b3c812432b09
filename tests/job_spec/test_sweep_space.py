"""The search space of a sweep: every mistake at its place, before anything trains; of a range by its first trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.errors import DataError, SpecError
from drivetrain.job.sweep import format_assignments
from drivetrain.job_spec import sweep_space
from drivetrain.job_spec.load_job import load
from drivetrain.supervisor import sweep_trials
from tests.messages import saying

JOB = """name: kinds
task: tabular-classification
data: {train: t.csv, target: kind}
model: {name: mlp, hidden: [16]}
train: {epochs: 4, optimizer: {name: adamw, betas: [0.9, 0.99]}}
"""


def job(folder: Path, space: str, extra_keys: str = "") -> Path:
    for name in ("t.csv", "u.csv"):
        (folder / name).write_text("x,kind\n1,a\n2,b\n")
    path = folder / "job.yaml"
    path.write_text(f"{JOB}sweep:\n  space:\n    {space}\n{extra_keys}")
    return path


REFUSED = [
    (
        "train.learning_rate: {low: 1, high: 2}",
        "8:5",
        "train.learning_rate: unknown key",
        'did you mean "train.optimizer.lr"?',
    ),
    ("train.epochs: {low: 1.5, high: 3}", "8:20", "train.epochs: is 1.5", "change the value"),
    ("train.optimizer.name: [adamw, sgdd]", "8:35", "train.optimizer.name: is 'sgdd'", 'did you mean "sgd"?'),
    (
        "train.optimizer.name: [adamw, sgd]",
        "5:45",
        "train.optimizer.betas: unknown key, if train.optimizer.name is 'sgd'",
        "remove it: it is a setting of adamw or muon",
    ),
    ("train.batch_size: [16, 16.0]", "8:5", "sweep.space.train.batch_size: has 16.0 twice", "remove one"),
    (
        "train.batch_size: [16]",
        "8:5",
        "sweep.space.train.batch_size: is the list [16], a single value",
        "add a value, or set train.batch_size itself to 16",
    ),
    ("train.batch_size: []", "8:5", "sweep.space.train.batch_size: is an empty list", "add a value"),
    ("limits.cpus: [1, 2]", "8:5", "sweep.space.limits.cpus: limits is the same in all trials", "remove it"),
    ("train.seed: 5", "8:5", "sweep.space.train.seed: is 5", "change the value"),
    ("train.seed: {low: 5}", "8:5", "sweep.space.train.seed.high: is missing", "add `high:`"),
]


@pytest.mark.parametrize(("space", "location", "description", "action"), REFUSED)
def test_a_mistake_has_its_place(tmp_path: Path, space: str, location: str, description: str, action: str) -> None:
    path = job(tmp_path, space)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert len(caught.value.problems) == 1
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}:{location}: {description}"
    assert lines[2] == f"  do:       {action}"


@pytest.mark.parametrize(
    ("key", "values", "reason"),
    [
        ("train.optimizer.lr", "{low: 3, high: 2}", "low <= high"),
        ("model.dropout", "{low: 0, high: 0.3, log: true}", "low > 0"),
        ("train.optimizer.lr", "{low: 0.001, high: 3, log: true, step: 1}", "step"),
        ("train.optimizer.lr", "{low: 0.1, high: 1, step: 0.4}", "not divisible by `step`"),
    ],
)
def test_a_range_is_refused_before_the_first_trial(tmp_path: Path, key: str, values: str, reason: str) -> None:
    path = job(tmp_path, f"{key}: {values}")
    with pytest.raises(SpecError, check=saying("range-is-refused", path, key)) as caught:
        sweep_trials.make_distributions(load(path))
    assert reason in str(caught.value)


def test_all_mistakes_at_once_and_those_of_the_metric(tmp_path: Path) -> None:
    path = job(tmp_path, "model.dropout: {low: -1, high: 1}", "  metric: validation/acuracy\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert [problem.key for problem in caught.value.problems] == ["sweep.metric", "model.dropout"]
    assert 'did you mean "validation/accuracy"?' in str(caught.value)


def test_whole_numbers_are_those_of_keys_that_take_no_others(tmp_path: Path) -> None:
    space = (
        "{model.dropout: {low: 0, high: 0.5}, train.optimizer.lr: {low: 1, high: 2}, train.epochs: {low: 2, high: 9}}"
    )
    sweep = load(job(tmp_path, "train.seed: [1, 2]"), [f"sweep.space={space}"])
    assert {p.key: p.whole for p in sweep.parameters} == {
        "model.dropout": False,
        "train.optimizer.lr": False,
        "train.epochs": True,
    }


def test_choices_can_be_files_and_sections(tmp_path: Path) -> None:
    """Each is set before what lies below it, and a container gets the files of all."""
    space = "{train.optimizer.lr: {low: 1e-3, high: 1}, train.optimizer: [sgd, adam], data.train: [t.csv, u.csv]}"
    path = job(tmp_path, "train.seed: [1, 2]")
    sweep = load(path, [f"sweep.space={space}"])
    assert sweep_space.list_choices(sweep) == [
        'train.optimizer="sgd"',
        'train.optimizer="adam"',
        'data.train="t.csv"',
        'data.train="u.csv"',
    ]
    sets = format_assignments({"train.optimizer.lr": 0.5, "train.optimizer": "sgd"})
    assert sets == ['train.optimizer="sgd"', "train.optimizer.lr=0.5"]
    with pytest.raises(DataError, check=saying("nothere-csv-exist", "data.train")):
        load(path, ["sweep.space={data.train: [t.csv, nothere.csv]}"])
