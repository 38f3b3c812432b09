"""A loss or metric of a user gets targets in a shape with which no sample meets the target of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import drivetrain
from drivetrain.data.custom.broadcasts import find_broadcast
from drivetrain.data.custom.user_loss import CustomTerms
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.models.build import build
from drivetrain.training import losses
from drivetrain.training.evaluation.metrics import MetricAccumulator
from tests import own_job
from tests.messages import saying, says

# Each pair computes the same loss, for targets (N,) and for targets (N, 1).
WRITINGS: dict[str, tuple[Any, Any]] = {
    "square": (lambda o, t: (o.squeeze(-1) - t).square().mean(), lambda o, t: (o - t).square().mean()),
    "column": (lambda o, t: F.mse_loss(o[:, 0], t), F.mse_loss),
    "module": (lambda o, t: nn.HuberLoss()(o.view(-1), t), nn.HuberLoss()),
    "each": (lambda o, t: (o.flatten() - t).abs(), lambda o, t: (o - t).abs().flatten()),
    "smooth": (lambda o, t: F.smooth_l1_loss(o.reshape(-1), t), lambda o, t: F.smooth_l1_loss(o, t)),
    "strict": (
        lambda o, t: F.binary_cross_entropy_with_logits(o.squeeze(1), t.sigmoid()),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t.sigmoid()),
    ),
    "weighted": (
        lambda o, t: (t.abs() * (o.squeeze(1) - t) ** 2).mean(),
        lambda o, t: (t.abs() * (o - t) ** 2).mean(),
    ),
    "joined": (
        lambda o, t: torch.stack([o[:, 0], t]).var(dim=0).mean(),
        lambda o, t: torch.cat([o, t], 1).var(1).mean(),
    ),
    "log-cosh": (lambda o, t: (o.squeeze() - t).cosh().log().mean(), lambda o, t: torch.cosh(t - o).log().mean()),
    "sum": (lambda o, t: (o[:, 0] - t).square().sum(), nn.MSELoss(reduction="sum")),
}


@pytest.mark.parametrize("raw", [(8,), (8, 1)], ids=["data (N,)", "data (N, 1)"])
@pytest.mark.parametrize("writing", [0, 1], ids=["written for (N,)", "written for (N, 1)"])
@pytest.mark.parametrize("kind", WRITINGS)
def test_a_loss_of_single_numbers_never_depends_on_a_broadcast(kind: str, writing: int, raw: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(8, 1, requires_grad=True), torch.randn(raw)
    terms = CustomTerms(WRITINGS[kind][writing], "loss", SpecError)
    terms.set_data_shape(targets)
    column = targets.reshape(8, 1)
    terms.check_call(outputs[:2], column[:2])
    expected = WRITINGS[kind][1](outputs, column).mean()
    terms.divide(outputs, column)
    total = terms(outputs, column).sum() / (1 if terms.division.summed else 8)
    torch.testing.assert_close(total, expected)
    if writing != targets.ndim - 1:
        assert says(terms.notes()[0], "loss-gets-shape", ["(N,)", "(N, 1)"][writing])


Q, C = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0, 2])
PIXELS = torch.randn(2, 1, 6, 5, requires_grad=True)
MASK = (torch.rand(2, 6, 5) > 0.5).float()
ROWS = torch.randn(2, 3, requires_grad=True)
ONE = torch.randn(2, 1, requires_grad=True)
CALLS: dict[str, tuple[Any, Tensor, Tensor, bool]] = {
    "other (N,)": (nn.MSELoss(), ONE, torch.randn(2), True),
    "one of the classes": (lambda o, t: ((o[:, 1:2] - t) ** 2).mean(), ROWS, C, True),
    "weights in the targets": (lambda o, t: (t[:, 1] * (o - t[:, :1]) ** 2).mean(), ONE, torch.randn(2, 2), True),
    "masks": (lambda o, t: 1 - (o.sigmoid() * t).sum() / (o.sigmoid() + t).sum(), PIXELS, MASK, True),
    "in place": (lambda o, t: torch.where(t > 0, o - t, o).mean(), ONE, torch.randn(2), True),
    "a comparison": (lambda o, t: torch.where(o > t, 0.9, 0.1).mul(o).mean(), ONE, torch.randn(2), True),
    "two of the outputs": (lambda o, t: ((o[:, :1] - t[:, None]) * o[:, 1].exp()).mean(), ROWS, torch.randn(2), True),
    "columns of the targets": (lambda o, t: (o * (t[:, :1] * t[:, 1])).mean(), ONE, torch.randn(2, 2), True),
    "distances": (lambda o, t: ((s := o.square().sum(1))[:, None] + s - 2 * o @ o.T).mean(), ROWS, C, False),
    "quantiles": (lambda o, t: torch.maximum((t[:, None] - o) * Q, (o - t[:, None]) * (1 - Q)).mean(), ROWS, torch.randn(2), False),
    "Gaussian": (lambda o, t: F.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp()), ROWS, torch.randn(2), False),
    "all pairs": (lambda o, t: F.relu((o - o.T) * (t[:, None] - t[None, :])).mean(), ONE, torch.randn(2), False),
    "pairs of labels": (lambda o, t: ((t.unsqueeze(1) == t).float() * (o @ o.T)).mean(), ROWS, C, False),
    "expanded labels": (lambda o, t: (torch.cdist(o, o) * t.expand(len(t), len(t)).eq(t[:, None])).mean(), ROWS, C, False),
    "chosen class": (lambda o, t: -o.log_softmax(1)[torch.arange(len(t)), t].mean(), ROWS, C, False),
    "as many bins as rows": (lambda o, t: ((o - torch.linspace(0, 1, 12)) ** 2).mean(), ONE, torch.randn(2), False),
    "centered": (lambda o, t: (o.squeeze(1) - o.mean() - (t - t.mean())).pow(2).mean(), ONE, torch.randn(2), False),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "outputs", "targets", "broadcasts"), CALLS.values(), ids=CALLS)
def test_broadcasts_are_told_from_pairs(loss: Any, outputs: Tensor, targets: Tensor, broadcasts: bool) -> None:
    assert bool(find_broadcast(loss, outputs, targets)) is broadcasts
    terms = CustomTerms(loss, "loss", SpecError)
    if broadcasts:
        with pytest.raises(SpecError, check=saying("broadcast-every-sample")) as caught:
            terms.check_call(outputs, targets)
        assert "reshape(outputs.shape)" in caught.value.action
    else:
        terms.check_call(outputs, targets)


NUMBERS = """
import torch

def points(samples, seed):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(dim=1)

def load():
    return points(64, 0), points(32, 1)
"""
LOSS = "def loss():\n    return lambda outputs, targets: {}"


@pytest.mark.parametrize(
    "loss", ["(outputs.squeeze(-1) - targets).square().mean()", "(outputs - targets).square().mean()"]
)
def test_training_and_evaluation_of_a_job_file_have_the_same_loss(loss: str, tmp_path: Path) -> None:
    files = {"my_data.py": NUMBERS, "my_loss.py": LOSS.format(loss)}
    job = own_job.job(tmp_path, files, train="loss: {file: my_loss.py}")
    data = load(job)
    network = build(job, data).module
    for dataset in (data, load(job)):  # the second one is evaluated without a check of the network
        objective = losses.build_objective(job.train.loss, dataset.heads, {}, "none", dataset.loss)
        accumulator = MetricAccumulator(dataset.heads, objective)
        inputs, targets = dataset.validation.gather(np.arange(32))[0], dataset.validation.targets
        with torch.no_grad():
            outputs = network(inputs)
        accumulator.add(outputs, targets)
        expected = F.mse_loss(outputs, targets[""])
        assert accumulator.metrics()["validation/loss"] == pytest.approx(float(expected), rel=1e-6)


def test_a_broadcast_in_a_job_file_is_refused_with_its_line(tmp_path: Path) -> None:
    files = {"my_data.py": NUMBERS, "my_loss.py": LOSS.format("(outputs - targets).square().mean()")}
    job = own_job.job(
        tmp_path, files, data="targets: other", model="arguments: {outputs: 1}", train="loss: {file: my_loss.py}"
    )
    with pytest.raises(SpecError, check=saying("broadcast-every-sample")) as caught:
        build(job, load(job))
    assert "my_loss.py:2" in str(caught.value)
    assert says(str(caught.value), "broadcast-shapes", "(N, 1)", "(N,)")


class Distance:
    """A metric as people write it for targets (N,)."""

    higher_is_better = False

    def reset(self) -> None:
        self.sum = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.sum += float((outputs - targets).abs().mean())

    def compute(self) -> float:
        return self.sum


def test_a_broadcast_in_a_metric_is_refused(tmp_path: Path) -> None:
    x = torch.randn(48, 4)
    data = x, x.sum(dim=1)
    with pytest.raises(SpecError, check=saying("broadcast-every-sample")) as caught:
        drivetrain.train(
            nn.Linear(4, 1), data, data, targets="other", loss=lambda o, t: (o[:, 0] - t) ** 2, runs=tmp_path, quiet=True,
            metrics={"distance-error": Distance()},
        )  # fmt: skip
    assert "metrics: update() of distance-error" in str(caught.value)


@pytest.mark.parametrize("kind", ["broadcast", "as many bins as rows"])
def test_a_broadcast_in_a_loop_of_ones_own_is_refused(kind: str) -> None:
    x = torch.randn(12, 4)
    model, by_hand = nn.Linear(4, 1), nn.Linear(4, 1)
    by_hand.load_state_dict(model.state_dict())
    loss = {
        "broadcast": lambda o, t: (o - t).square().mean(),
        "as many bins as rows": lambda o, t: ((o - torch.linspace(0, 1, 12)) * t[:, None]).square().mean(),
    }[kind]
    sgd, sgd_by_hand = (torch.optim.SGD(network.parameters(), 0.1) for network in (model, by_hand))
    with drivetrain.prepare(model, sgd, loss=loss, optimize={"cpu_threads": 1}, quiet=True) as step:
        if kind == "broadcast":
            with pytest.raises(SpecError, check=saying("broadcast-every-sample")):
                step((x, x.sum(dim=1)))
            return
        step((x, x.sum(dim=1)))
    loss(by_hand(x), x.sum(dim=1)).backward()
    sgd_by_hand.step()
    assert torch.equal(model.weight, by_hand.weight)


OTHER: dict[str, tuple[Any, Any]] = {
    "classes, mean": (torch.arange(48) % 2, lambda o, t: F.cross_entropy(o, t)),
    "numbers, each": (torch.randn(48), lambda o, t: (o[:, 0] - t) ** 2),
    "Gaussian": (torch.randn(48), lambda o, t: F.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp())),
    "booleans": (torch.arange(48) % 2 > 0, lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.float())),
    "column": (torch.randn(48, 1), lambda o, t: F.mse_loss(o[:, :1], t)),
}


@pytest.mark.parametrize(("targets", "loss"), OTHER.values(), ids=OTHER)
def test_other_targets_of_any_shape_are_trained_as_by_hand(targets: Tensor, loss: Any, tmp_path: Path) -> None:
    x = torch.randn(48, 4)
    model, by_hand = nn.Linear(4, 2), nn.Linear(4, 2)
    by_hand.load_state_dict(model.state_dict())
    sgd = torch.optim.SGD(by_hand.parameters(), 0.1)
    loss(by_hand(x), targets).mean().backward()
    sgd.step()
    drivetrain.train(
        model, (x, targets), (x, targets), targets="other", loss=loss, runs=tmp_path, epochs=1, batch_size=48, quiet=True,
        optimizer=torch.optim.SGD(model.parameters(), 0.1), optimize={"measure": "off", "precision": "fp32"},
    )  # fmt: skip
    torch.testing.assert_close(model.weight, by_hand.weight)
