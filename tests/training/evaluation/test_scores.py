"""Our scores against torchmetrics."""

from __future__ import annotations

import pytest
import torch

from runtime.data.dataset import Head
from runtime.job.formatting import format_metric
from runtime.training.evaluation.scores import scores


@pytest.fixture(scope="module")
def reference() -> object:
    functional = pytest.importorskip("torchmetrics.functional")
    return functional


@pytest.mark.parametrize("classes", [2, 5])
def test_accuracy_and_macro_f1(reference: object, classes: int) -> None:
    torch.manual_seed(classes)
    outputs, targets = torch.randn(200, classes), torch.randint(0, classes, (200,))
    kept = scores(Head("", classes=tuple("abcde"[:classes])))
    for part in range(0, 200, 64):
        kept.update(outputs[part : part + 64], targets[part : part + 64])
    f1 = reference.f1_score(outputs.argmax(1), targets, task="multiclass", num_classes=classes, average="macro")  # type: ignore[attr-defined]
    assert kept.compute()["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert kept.compute()["f1"] == pytest.approx(float(f1), abs=1e-6)


def test_classes_that_never_occur_do_not_count() -> None:
    kept = scores(Head("", classes=("a", "b", "c")))
    kept.update(torch.tensor([[2.0, 1, 0], [0, 1, 0]]), torch.tensor([0, 1]))
    assert kept.compute() == {"accuracy": 1.0, "f1": 1.0}


def test_several_labels(reference: object) -> None:
    torch.manual_seed(1)
    outputs, targets = torch.randn(100, 4), torch.randint(0, 2, (100, 4))
    kept = scores(Head("", classes=tuple("abcd"), several=True))
    kept.update(outputs, targets.float())
    f1 = reference.f1_score(outputs.sigmoid(), targets, task="multilabel", num_labels=4, average="macro")  # type: ignore[attr-defined]
    assert kept.compute()["f1"] == pytest.approx(float(f1), abs=1e-6)
    assert kept.compute()["accuracy"] == pytest.approx(float(((outputs > 0) == targets.bool()).all(1).double().mean()))
    micro = reference.f1_score(outputs.sigmoid(), targets, task="multilabel", num_labels=4, average="micro")  # type: ignore[attr-defined]
    assert kept.compute()["micro_f1"] == pytest.approx(float(micro), abs=1e-6)


def test_average_precision_of_labels(reference: object) -> None:
    """Of the rounded outputs it is exact, also where samples have the same one; a label without samples does not count."""
    torch.manual_seed(2)
    outputs, targets = 3 * torch.randn(400, 4), (torch.rand(400, 4) < 0.2).long()
    outputs[:, 0] = outputs[:, 0].round()
    targets[:, 3] = 0
    kept, other = (scores(Head("", classes=tuple("abcd"), several=True)) for _ in range(2))
    kept.update(outputs[:150], targets[:150].float())
    other.update(outputs[150:], targets[150:].float())
    for mine, more in zip(kept.counts(), other.counts(), strict=True):
        mine += more
    rounded = (outputs * 128).round() / 128

    def mean(ranked: torch.Tensor) -> float:
        each = [reference.average_precision(ranked[:, n], targets[:, n], task="binary") for n in range(3)]  # type: ignore[attr-defined]
        return float(torch.stack(each).mean())

    assert kept.compute()["map"] == pytest.approx(mean(rounded.double().sigmoid()), abs=1e-6)
    assert kept.compute()["map"] == pytest.approx(mean(outputs), abs=2e-3)


def test_numbers_in_the_units_of_the_data() -> None:
    head = Head("", columns=("x",), mean=(10.0,), std=(2.0,))
    kept = scores(head)
    truth, guess = torch.randn(50, 1), torch.randn(50, 1)
    kept.update(guess, truth)
    error = (guess - truth) * 2
    got = kept.compute()
    assert got["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert got["rmse"] == pytest.approx(float((error**2).mean().sqrt()), rel=1e-5)
    spread = ((truth - truth.mean()) ** 2).sum()
    assert got["r2"] == pytest.approx(float(1 - ((guess - truth) ** 2).sum() / spread), rel=1e-4)


@pytest.mark.parametrize(("offset", "spread"), [(1e8, 1.0), (1e8, 1e3), (-1e12, 1.0), (0.0, 1e-9), (3e5, 1e-3)])
def test_numbers_far_from_zero(offset: float, spread: float) -> None:
    torch.manual_seed(0)
    truth, error = torch.randn(200, 1), 0.5 * torch.randn(200, 1)
    kept = scores(Head("", columns=("x",), mean=(offset,), std=(spread,)))
    kept.update(truth + error, truth)
    got, plain = kept.compute(), (truth.double() - truth.double().mean()).pow(2).sum()
    assert got["r2"] == pytest.approx(float(1 - error.double().pow(2).sum() / plain), rel=1e-5)
    assert got["rmse"] == pytest.approx(float(error.double().pow(2).mean().sqrt()) * spread, rel=1e-5)
    assert got["mae"] == pytest.approx(float(error.double().abs().mean()) * spread, rel=1e-5)


def test_each_of_several_columns_has_its_scores() -> None:
    """Over all columns the unit of one of them decides, but not in scaled_rmse."""
    head = Head("", columns=("wear", "price"), mean=(0.5, 20000.0), std=(0.25, 9000.0))
    tally = scores(head)
    truth, guess = torch.randn(50, 2), torch.randn(50, 2)
    tally.update(guess, truth)
    found = tally.compute()
    error = (guess - truth).double()
    for index, (column, std) in enumerate(zip(head.columns, head.std, strict=True)):
        one = scores(Head("", columns=(column,), mean=(0.0,), std=(std,)))
        one.update(guess[:, index : index + 1], truth[:, index : index + 1])
        assert {key: found[f"{column}/{key}"] for key in ("mae", "rmse", "r2")} == pytest.approx(one.compute())
    assert found["scaled_rmse"] == pytest.approx(float(error.pow(2).mean().sqrt()))
    assert found["rmse"] == pytest.approx(float((error * torch.tensor(head.std)).pow(2).mean().sqrt()))
    assert "scaled_rmse" not in scores(Head("", columns=("x",), mean=(0.0,), std=(1.0,))).compute()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "0.5000"), (0.0, "0.0000"), (3.2e-7, "3.2e-07"), (-4.56789e-5, "-4.568e-05"), (12345.6, "12345.6000")],
)
def test_tiny_numbers_are_shown(value: float, shown: str) -> None:
    assert format_metric(value) == shown
