"""Class weights as numbers by the name of a class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.inference import new_data_loss
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.training import losses
from tests.messages import says_only

TABLE = "name: t\ntask: tabular-classification\ndata: {train: a.csv, target: kind}\n"
TEXTS = "name: t\ntask: text-classification\ndata:\n  train: a.csv\n  text: said\n  labels:\n"


def job(folder: Path, text: str) -> Job:
    rows = [
        f"{n % 5},{['benign', 'malignant', 'odd'][n % 3]},{n % 2},{int(n % 7 == 0)},word w{n % 9}" for n in range(60)
    ]
    (folder / "a.csv").write_text("size,kind,red,rare,said\n" + "\n".join(rows) + "\n")
    (folder / "job.yaml").write_text(text)
    return job_spec.load(folder / "job.yaml")


def weights(weighted_job: Job) -> dict[str, list[float] | None]:
    """The weights of each head's loss."""
    data = load(weighted_job)
    objective = losses.build_objective(
        weighted_job.train.loss, data.heads, data.train.targets, weighted_job.train.class_weights
    )
    return {
        name: None if loss.class_weights is None else loss.class_weights.tolist()
        for name, loss in objective.losses.items()
    }


def test_a_class_without_a_weight_has_one_and_it_is_said(tmp_path: Path) -> None:
    weighted_job = job(tmp_path, f"{TABLE}train: {{class_weights: {{malignant: 5}}}}\n")
    assert weights(weighted_job) == {"": [1.0, 5.0, 1.0]}
    assert says_only(load(weighted_job).notes, "class-weights-malignant-benign", 5, 1)


def test_an_unknown_class_is_refused_at_its_place(tmp_path: Path) -> None:
    weighted_job = job(tmp_path, f"{TABLE}train:\n  class_weights:\n    odd: 2\n    malignnt: 5\n")
    with pytest.raises(SpecError) as refused:
        load(weighted_job)
    (problem,) = refused.value.problems
    assert problem.place.endswith("job.yaml:7:5")
    assert problem.key == "train.class_weights.malignnt"
    assert (problem.possible, problem.action) == ("benign, malignant, odd", 'did you mean "malignant"?')


def test_each_label_column_has_its_own(tmp_path: Path) -> None:
    text = f"{TEXTS}    kind: {{class_weights: {{odd: 3}}}}\n    red: {{class_weights: none}}\n    rare: {{}}\n"
    weighted_job = job(tmp_path, f"{text}train: {{class_weights: balanced}}\n")
    weights_by_head = weights(weighted_job)
    assert (weights_by_head["kind"], weights_by_head["red"]) == ([1.0, 1.0, 3.0], None)
    assert weights_by_head["rare"] is not None
    assert weights_by_head["rare"][1] > 3
    with pytest.raises(
        SpecError, match=r"job\.yaml:7:28: data\.labels\.kind\.class_weights\.od: \"od\" is not a class"
    ):
        load(job(tmp_path, text.replace("odd", "od")))
    with pytest.raises(SpecError, match=r"move it: data\.labels\.kind\.class_weights"):
        job(tmp_path, f"{text}train: {{class_weights: {{odd: 3}}}}\n")
    alone = job(tmp_path, f"{TEXTS}    kind: {{class_weights: {{od: 3}}}}\n")
    with pytest.raises(SpecError, match=r"data\.labels\.kind\.class_weights\.od"):
        load(alone)


def test_labels_of_a_table_have_positive_weights(tmp_path: Path) -> None:
    """They were refused."""
    several = TABLE.replace("target: kind", "target: [red, rare], ignore: [kind, said]")
    assert weights(job(tmp_path, f"{several}train: {{class_weights: {{rare: 6}}}}\n")) == {"": [1.0, 6.0]}
    data = load(weighted_job := job(tmp_path, f"{several}train: {{class_weights: balanced}}\n"))
    true = data.train.targets[""].sum(0)
    assert weights(weighted_job)[""] == pytest.approx(((len(data.train) - true) / true).tolist())


def test_named_weights_hold_for_new_data(tmp_path: Path) -> None:
    """They are known without the training data, unlike balanced ones."""
    weighted_job = job(tmp_path, f"{TABLE}train: {{class_weights: {{odd: 4}}}}\n")
    targets, outputs = torch.tensor([0, 2, 2, 1]), torch.randn(4, 3)
    objective, note = new_data_loss.build_objective([tmp_path], load(weighted_job).heads, {"": targets})
    assert objective is not None
    assert note == ""
    loss = objective(outputs, {"": targets}, objective.denominators({"": targets}))
    torch.testing.assert_close(loss, functional.cross_entropy(outputs, targets, torch.tensor([1.0, 1.0, 4.0])))
