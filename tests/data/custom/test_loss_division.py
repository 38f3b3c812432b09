"""How a user's loss of a batch follows from those of its parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.data.custom.user_loss import CustomTerms, LossRule
from drivetrain.errors import SpecError

WEIGHTS = torch.tensor([0.5, 1.0, 7.0])
CLASSES = torch.arange(3)
OBSTACLES = {
    "number": "loss is one number for a batch",
    "raises": "loss raises IndexError for one sample",
    "depends": "loss of a sample depends on the others of its batch",
}


def divide_loss(loss: Any, outputs: Tensor, targets: Tensor, weight_of: Any = None) -> LossRule:
    terms = CustomTerms(loss, "loss", SpecError, weight_of)
    terms.divide(outputs, targets)
    return terms.division


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (nn.MSELoss(), "mean"),
        (nn.SmoothL1Loss(), "mean"),
        (nn.KLDivLoss(reduction="batchmean"), "mean"),
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), "mean"),
        (F.binary_cross_entropy, "mean"),
        (partial(F.huber_loss, delta=2.0), "mean"),
        (lambda outputs, targets: -(targets * outputs.log()).sum(dim=1), "mean"),
        (lambda outputs, targets: (outputs - targets).abs().mean(dim=1) * torch.rand(()), "mean"),
        (nn.MSELoss(reduction="sum"), "sum"),
        (partial(F.binary_cross_entropy, reduction="sum"), "sum"),
        (partial(F.cross_entropy, reduction="sum"), "sum"),
        (lambda outputs, targets: F.mse_loss(outputs, targets), "number"),
        (lambda outputs, targets: (outputs - outputs.mean(dim=0)).abs().mean(dim=1), "depends"),
        (lambda outputs, targets: (outputs - outputs[1]).abs().mean(dim=1), "raises"),
    ],
    ids=[
        "mse", "smooth", "batchmean", "pos_weight", "function", "keyword", "each", "each, random", "mse sum", "function sum",
        "cross entropy sum", "own function", "others", "another",
    ],
)  # fmt: skip
def test_the_rule_of_a_loss(loss: Any, kind: str) -> None:
    outputs = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) * 0.9 + 0.05
    targets = torch.rand(9, 3, generator=torch.Generator().manual_seed(2))
    division = divide_loss(loss, outputs, targets)
    assert division.obstacle == OBSTACLES.get(kind, "")
    assert division.summed == (kind == "sum")
    assert division.count is None


def test_weight_of_is_the_rule_of_any_loss() -> None:
    weight_of: Any = len
    assert (
        divide_loss(lambda outputs, targets: outputs.norm(), torch.zeros(2, 3), CLASSES, weight_of).count is weight_of
    )


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
        return outputs.mul_(2).sub_(targets.mul_(2)).pow(2).mean(dim=1)


def test_a_trial_leaves_the_loss_its_arguments_and_the_generator_alone() -> None:
    loss, outputs, targets, state = Stateful(), torch.ones(2, 3), torch.rand(9, 3), torch.get_rng_state()
    before = targets.clone()
    assert divide_loss(loss, outputs, targets) == LossRule()
    assert loss.calls == 0
    assert torch.equal(targets, before)
    assert torch.equal(outputs, torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), state)
