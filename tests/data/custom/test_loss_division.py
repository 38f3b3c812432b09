"""How a user's loss of a batch follows from those of its parts: what is tried, and what the trial leaves alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.data.custom.user_loss import CustomTerms, LossRule
from drivetrain.errors import SpecError
from tests.messages import says

WEIGHTS = torch.tensor([0.5, 1.0, 7.0])
CLASSES = torch.arange(3)


def divide_loss(loss: Any, outputs: Tensor, targets: Tensor, weight_of: Any = None) -> LossRule:
    terms = CustomTerms(loss, "loss", SpecError, weight_of)
    terms.divide(outputs, targets)
    return terms.division


def weighted_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, WEIGHTS)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (nn.MSELoss(), "mean"),
        (nn.SmoothL1Loss(), "mean"),
        (nn.KLDivLoss(reduction="batchmean"), "mean"),
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), "mean"),
        (lambda outputs, targets: F.binary_cross_entropy(outputs, targets), "mean"),
        (lambda outputs, targets: -(targets * outputs.log()).sum(dim=1), "mean"),
        (nn.MSELoss(reduction="sum"), "sum"),
        (nn.BCELoss(reduction="sum"), "sum"),
        (lambda outputs, targets: (outputs - targets).norm(), "unknown"),
        (lambda outputs, targets: F.mse_loss(outputs, targets) * torch.rand(()), "unknown"),
        (lambda outputs, targets: (outputs - targets).abs().mean() / (outputs - targets).abs().mean().detach(), "unknown"),
        (lambda outputs, targets: F.mse_loss(outputs[:4], targets[:4]), "unknown"),
        (lambda outputs, targets: F.mse_loss(outputs[1:], targets[1:]) if len(outputs) > 1 else 1 / 0, "unknown"),
    ],
    ids=[
        "mse", "smooth", "batchmean", "pos_weight", "probabilities", "logarithms", "mse sum", "probabilities sum", "norm",
        "random", "gradient alone", "first samples", "raises",
    ],
)  # fmt: skip
def test_the_kind_of_a_loss_of_numbers_is_found(loss: Any, kind: str) -> None:
    outputs = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) * 0.9 + 0.05
    targets = torch.rand(9, 3, generator=torch.Generator().manual_seed(2))
    division = divide_loss(loss, outputs, targets)
    assert ("unknown" if division.obstacle else "sum" if division.summed else "mean") == kind
    assert division.count is None


def weigh_by_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none") / torch.bincount(targets)[targets] * len(targets)


def keep_hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return losses * (losses >= losses.median())


def compare_neighbors(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return losses + F.pad((outputs[1:] - outputs[:-1]).square().sum(1), (1, 0))


def divide_by_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return losses / losses.detach().mean()


@pytest.mark.parametrize("loss", [weigh_by_batch, keep_hardest, compare_neighbors, divide_by_mean])
@pytest.mark.parametrize("outputs", [torch.zeros(2, 3), torch.eye(3)[:2]], ids=["zeros", "unlike"])
def test_values_of_samples_that_depend_on_their_batch_are_noticed(loss: Any, outputs: Tensor) -> None:
    """Divided, they would train with other gradients, without a word."""
    assert divide_loss(loss, outputs, torch.tensor([0, 1])).obstacle


@pytest.mark.parametrize("outputs", [torch.zeros(2, 3), torch.randn(2, 3)], ids=["zeros", "random"])
def test_class_weights_in_a_function_are_noticed(outputs: Tensor) -> None:
    assert says(divide_loss(weighted_loss, outputs, CLASSES).obstacle, "neither-mean-nor-sum")


@pytest.mark.parametrize(
    "weight_of",
    [lambda targets: WEIGHTS[targets], lambda targets: float(WEIGHTS[targets].sum())],
    ids=["each", "number"],
)
def test_weight_of_is_tried(weight_of: Any) -> None:
    assert divide_loss(weighted_loss, torch.zeros(2, 3), CLASSES, weight_of).count is weight_of


@pytest.mark.parametrize(
    ("weight_of", "message"),
    [(len, "not the mean over its parts weighted by weight_of"), (lambda targets: targets["y"], "weight_of raised")],
    ids=["wrong", "raises"],
)
def test_a_weight_of_that_does_not_fit_is_an_error(weight_of: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        divide_loss(weighted_loss, torch.zeros(2, 3), CLASSES, weight_of)
    assert caught.value.action


@pytest.mark.parametrize("smoothing", [0.0, 0.2], ids=["sharp", "smooth"])
@pytest.mark.parametrize("ignored", [-100, 1], ids=["none", "one"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("form", ["classes", "pixels", "probabilities", "pixel probabilities"])
def test_cross_entropy_of_torch_is_taken_apart(
    form: str, weights: Tensor | None, ignored: int, smoothing: float
) -> None:
    generator = torch.Generator().manual_seed(4)
    shape = (7, 3, 2, 5) if "pixel" in form else (7, 3)
    outputs = torch.randn(shape, generator=generator)
    targets: Tensor = torch.randint(0, 3, (shape[0], *shape[2:]), generator=generator)
    if "probabilities" in form:
        if ignored >= 0:
            pytest.skip("torch ignores no class of probabilities")
        targets = torch.rand(shape, generator=generator)
    loss = partial(F.cross_entropy, weight=weights, ignore_index=ignored, label_smoothing=smoothing)
    for function in (loss, nn.CrossEntropyLoss(weight=weights, ignore_index=ignored, label_smoothing=smoothing)):
        terms = CustomTerms(function, "loss", SpecError)
        parts = [(outputs[part], targets[part]) for part in (slice(0, 1), slice(1, 3), slice(3, 7))]
        above = sum(terms(*part).sum() for part in parts)
        below = sum(terms.weights(labels).sum() for _, labels in parts)
        torch.testing.assert_close(above / below, loss(outputs, targets), check_dtype=False)


class Stateful(nn.Module):
    """A loss that counts its calls and changes what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return outputs.mul_(2).sub_(targets.mul_(2)).pow(2).mean()


def test_a_trial_leaves_the_loss_its_arguments_and_the_generator_alone() -> None:
    loss, outputs, targets, state = Stateful(), torch.ones(2, 3), torch.rand(9, 3), torch.get_rng_state()
    before = targets.clone()
    assert divide_loss(loss, outputs, targets) == LossRule()
    assert loss.calls == 0
    assert torch.equal(targets, before)
    assert torch.equal(outputs, torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_targets_of_a_trial_are_bounded_by_the_outputs() -> None:
    sizes: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(targets))
        return outputs.mean()

    divide_loss(loss, torch.zeros(1, 2**19), torch.zeros(100))
    assert max(sizes) == 8
