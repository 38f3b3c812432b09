"""Our scores against torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Head
from drivetrain.job import lower_is_better
from drivetrain.training.evaluation.scores import build_scores
from tests.axes import each_once


@pytest.fixture(scope="module")
def reference() -> object:
    functional = pytest.importorskip("torchmetrics.functional")
    return functional


@pytest.mark.parametrize("classes", [2, 5])
def test_accuracy_and_macro_f1(reference: object, classes: int) -> None:
    torch.manual_seed(classes)
    outputs, targets = torch.randn(200, classes), torch.randint(0, classes, (200,))
    scores = build_scores(Head("", classes=tuple("abcde"[:classes])))
    for part in range(0, 200, 64):
        scores.update(outputs[part : part + 64], targets[part : part + 64])
    f1 = reference.f1_score(outputs.argmax(1), targets, task="multiclass", num_classes=classes, average="macro")  # type: ignore[attr-defined]
    assert scores.compute()["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert scores.compute()["f1"] == pytest.approx(float(f1), abs=1e-6)


def test_classes_that_never_occur_do_not_count() -> None:
    scores = build_scores(Head("", classes=("a", "b", "c")))
    scores.update(torch.tensor([[2.0, 1, 0], [0, 1, 0]]), torch.tensor([0, 1]))
    assert {name: scores.compute()[name] for name in ("accuracy", "f1", "balanced_accuracy")} == {
        "accuracy": 1.0,
        "f1": 1.0,
        "balanced_accuracy": 1.0,
    }


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_scores_of_probabilities_are_those_of_scikit_learn(classes: int, scale: float) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(classes)
    targets = torch.randint(0, classes, (300,))
    outputs = scale * (torch.randn(300, classes).round(decimals=1) + torch.nn.functional.one_hot(targets, classes))
    ours = build_scores(Head("", classes=tuple("abcd"[:classes])))
    for part in range(0, 300, 128):
        ours.update(outputs[part : part + 128], targets[part : part + 128])
    values = ours.compute()
    probabilities = outputs.double().softmax(1).numpy()
    truth = targets.numpy()
    assert values["log_loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(outputs.double(), targets)), rel=1e-5
    )
    assert values["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(truth, probabilities.argmax(1)), rel=1e-9
    )
    squares = ((probabilities - np.eye(classes)[truth]) ** 2).sum(1).mean()
    assert values["brier"] == pytest.approx(squares / 2 if classes == 2 else squares, rel=1e-4)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs((confidence - right)[bins == bin_number].sum()) for bin_number in range(15)]
    assert values["ece"] == pytest.approx(sum(gaps) / 300, abs=1e-5)
    if classes == 2:
        ranking = (outputs[:, 1] - outputs[:, 0]).numpy()
        assert values["auc"] == pytest.approx(metrics.roc_auc_score(truth, ranking), rel=1e-9)
        assert values["average_precision"] == pytest.approx(
            (metrics.average_precision_score(truth, ranking) + metrics.average_precision_score(1 - truth, -ranking)) / 2
        )
    else:
        assert "auc" not in values


@pytest.mark.parametrize("names", ["no yes", "1 2 3 4 10"])
def test_kappa_is_that_of_scikit_learn(names: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(3)
    classes = tuple(names.split())
    targets, outputs = torch.randint(0, len(classes), (200,)), torch.randn(200, len(classes))
    ours = build_scores(Head("", classes=classes))
    ours.update(outputs, targets)
    theirs = metrics.cohen_kappa_score(targets.numpy(), outputs.argmax(1).numpy(), weights="quadratic")
    assert ours.compute()["kappa"] == pytest.approx(theirs, rel=1e-9)


def test_classes_without_an_order_have_no_kappa() -> None:
    for classes in (("high", "low", "middle"), ("1", "10", "2")):
        scores = build_scores(Head("", classes=classes))
        scores.update(torch.eye(3), torch.arange(3))
        assert "kappa" not in scores.compute()


def test_mape_is_that_of_scikit_learn_and_lower_is_better() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(4)
    head = Head("", columns=("a", "b"), mean=(5.0, -3.0), std=(2.0, 0.1))
    truth, predicted = torch.randn(50, 2), torch.randn(50, 2)
    ours = build_scores(head)
    for part in (slice(0, 30), slice(30, 50)):
        ours.update(predicted[part], truth[part])
    numbers, guesses = (x.double() * torch.tensor(head.std) + torch.tensor(head.mean) for x in (truth, predicted))
    theirs = metrics.mean_absolute_percentage_error(numbers.numpy(), guesses.numpy(), multioutput="raw_values")
    assert [ours.compute()[f"{column}/mape"] for column in "ab"] == pytest.approx(theirs.tolist(), rel=1e-5)
    assert ours.compute()["mape"] == pytest.approx(theirs.mean(), rel=1e-5)
    assert lower_is_better("validation/a/mape")
    ours.update(torch.zeros(1, 2), torch.tensor([[-2.5, 0.0]]))
    assert "mape" not in ours.compute(), "a number is 0"
    assert "b/mape" in ours.compute()


def test_one_class_alone_has_no_order_and_no_sample_no_scores() -> None:
    ours = build_scores(Head("", classes=("a", "b")))
    assert "auc" not in ours.compute()
    assert ours.compute()["log_loss"] == 0
    ours.update(torch.randn(5, 2), torch.ones(5, dtype=torch.int64))
    assert "auc" not in ours.compute()
    ours.update(torch.full((3, 2), torch.nan), torch.ones(3, dtype=torch.int64))
    assert ours.compute()["ece"] != ours.compute()["ece"], "what is no number shows"


def test_several_labels(reference: object) -> None:
    torch.manual_seed(1)
    outputs, targets = torch.randn(100, 4), torch.randint(0, 2, (100, 4))
    scores = build_scores(Head("", classes=tuple("abcd"), several=True))
    scores.update(outputs, targets.float())
    f1 = reference.f1_score(outputs.sigmoid(), targets, task="multilabel", num_labels=4, average="macro")  # type: ignore[attr-defined]
    assert scores.compute()["f1"] == pytest.approx(float(f1), abs=1e-6)
    assert scores.compute()["accuracy"] == pytest.approx(
        float(((outputs > 0) == targets.bool()).all(1).double().mean())
    )
    micro = reference.f1_score(outputs.sigmoid(), targets, task="multilabel", num_labels=4, average="micro")  # type: ignore[attr-defined]
    assert scores.compute()["micro_f1"] == pytest.approx(float(micro), abs=1e-6)


def precision_by_definition(outputs: torch.Tensor, truth: torch.Tensor) -> float:
    """Recall gained at each threshold, times the precision there."""
    area, before, truth = 0.0, 0.0, truth.double()
    for threshold in sorted(set(outputs.tolist()), reverse=True):
        is_selected = outputs >= threshold
        recall = float(truth[is_selected].sum() / truth.sum())
        area += (recall - before) * float(truth[is_selected].mean())
        before = recall
    return area


@pytest.mark.parametrize(("scale", "shift", "ties"), each_once([1.0, 0.002, 20.0], [0.0, -2.0, 30.0], [False, True]))
def test_average_precision_of_labels(scale: float, shift: float, ties: bool) -> None:
    """Exact wherever the outputs lie: rounded to 1/128 and cut at 16, it was 0.17 in place of 0.71 here. A label without
    samples does not count.
    """
    torch.manual_seed(2)
    truth = (torch.rand(400, 4) < 0.2).float() * torch.tensor([1, 1, 1, 0])
    outputs = 2 * truth + torch.randn(400, 4)
    outputs = (outputs.round() if ties else outputs) * scale + shift
    ours = build_scores(Head("", classes=tuple("abcd"), several=True))
    ours.update(outputs[:150], truth[:150])
    ours.update(outputs[150:], truth[150:])
    expected = sum(precision_by_definition(outputs[:, n], truth[:, n]) for n in range(3)) / 3
    assert ours.compute()["map"] == pytest.approx(expected, abs=1e-9)


def test_average_precision_over_processes_is_that_of_all_samples() -> None:
    torch.manual_seed(3)
    outputs, truth = torch.randn(50, 3), (torch.rand(50, 3) < 0.3).float()
    head = Head("", classes=tuple("abc"), several=True)
    all_scores = build_scores(head)
    all_scores.update(outputs, truth)
    parts = [build_scores(head) for _ in range(3)]
    for part, (start, end) in zip(parts, ((0, 20), (20, 20), (20, 50)), strict=True):
        part.update(outputs[start:end], truth[start:end])
    sent: list[list[torch.Tensor]] = []
    for number, part in enumerate(parts):
        answers = iter([[torch.tensor([20, 0, 30])], [torch.stack([outputs, truth])]])
        sent.append([])

        def total(values: Sequence[torch.Tensor], answers: Any = answers) -> list[torch.Tensor]:
            sent[-1].extend(values)
            return list(next(answers))

        ranks: Any = SimpleNamespace(rank=number, world_size=3, all_reduce_sum=total)
        part.gather(ranks)
        part.counts()[0].copy_(all_scores.counts()[0])
        assert part.compute()["map"] == all_scores.compute()["map"]
    assert sum(sizes for sizes, _ in sent).tolist() == [20, 0, 30]
    assert torch.equal(sum(rows for _, rows in sent), torch.stack([outputs, truth]))  # type: ignore[arg-type]
