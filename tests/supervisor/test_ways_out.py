"""Programs of a shape that is refused, and the way out that the message names, which trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import drivetrain
from drivetrain.errors import DrivetrainError
from tests.messages import Message, get_message, says

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
LABELS, NUMBERS = (X[:, 0] > 0).long(), X.sum(dim=1)
Call = dict[str, Any]


class Changed(nn.Module):
    """A layer with a function of its outputs, such as squeeze(-1)."""

    def __init__(self, outputs: int, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(6, outputs), change

    def forward(self, *inputs: Tensor) -> Any:
        return self.change(torch.stack([self.inner(x) for x in inputs], dim=1).squeeze(1))


def reconstruct(o: Tensor, t: Tensor) -> Tensor:
    return (o[:, :6] - t).square().mean(dim=1) + o[:, 6:].square().mean(dim=1)


def contrast(o: Tensor, t: Tensor) -> Tensor:
    z = F.normalize(o.transpose(0, 1).flatten(0, 1), dim=1)
    n = len(o)
    similarity = (z @ z.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -9e9)
    return F.cross_entropy(similarity, torch.cat([torch.arange(n) + n, torch.arange(n)]))


def distill(o: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(o[:, :2], t) + F.mse_loss(o[:, :2], o[:, 2:])


def logit_loss(o: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(o.squeeze(1), t.float())


def variance_loss(o: Tensor, t: Tensor) -> Tensor:
    return F.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp())


NONE = torch.zeros(48, dtype=torch.int64)
# The call, its message, and the call after doing as it says.
SHAPES: dict[str, tuple[Call, Message, Call]] = {
    "several outputs for one number": (
        {"model": Changed(2, lambda o: o), "data": (X, NUMBERS), "loss": variance_loss},
        get_message("way-out-targets-other"),
        {"model": Changed(2, lambda o: o), "data": (X, NUMBERS), "loss": variance_loss, "targets": "other"},
    ),
    "distillation": (
        {"model": Changed(4, lambda o: o), "data": (X, LABELS), "loss": distill},
        get_message("way-out-targets-other"),
        {"model": Changed(4, lambda o: o), "data": (X, LABELS), "loss": distill, "targets": "other"},
    ),
    "a tuple of outputs": (
        {"model": Changed(8, lambda o: (o[:, :6], o[:, 6:])), "data": (X, X), "loss": reconstruct},
        get_message("way-out-cat"),
        {"model": Changed(8, lambda o: torch.cat([o[:, :6], o[:, 6:]], dim=1)), "data": (X, X), "loss": reconstruct, "targets": "other"},
    ),
    "two views": (
        {"model": Changed(4, lambda o: o), "data": (X, X + 0.1, NONE), "loss": contrast},
        get_message("way-out-no-targets"),
        {"model": Changed(4, lambda o: o), "data": (X, X + 0.1, NONE), "loss": contrast, "targets": "other"},
    ),
    "one logit for two classes": (
        {"model": Changed(1, lambda o: o), "data": (X, LABELS), "loss": logit_loss},
        get_message("way-out-floats"),
        {"model": Changed(1, lambda o: o), "data": (X, LABELS.float()), "loss": nn.BCEWithLogitsLoss()},
    ),
    "pictures for numbers": (
        {"model": Changed(6, lambda o: o[:, None]), "data": (X, X[:, None]), "loss": F.mse_loss, "targets": "numbers"},
        get_message("way-out-other-kind", "other"),
        {"model": Changed(6, lambda o: o[:, None]), "data": (X, X[:, None]), "loss": F.mse_loss, "targets": "other"},
    ),
    "floats for labels": (
        {"model": Changed(3, lambda o: o), "data": (X, X[:, :3]), "loss": "bce", "targets": "labels"},
        get_message("way-out-other-kind", "numbers"),
        {"model": Changed(3, lambda o: o), "data": (X, X[:, :3]), "loss": "mse", "targets": "numbers"},
    ),
    "a squeezed logit": (
        {"model": Changed(1, lambda o: o.squeeze(-1)), "data": (X, NUMBERS), "loss": lambda o, t: (o - t).abs()},
        get_message("way-out-squeeze"),
        {"model": Changed(1, lambda o: o), "data": (X, NUMBERS), "loss": lambda o, t: (o - t).abs().squeeze(-1)},
    ),
}  # fmt: skip


def train(folder: Path, model: nn.Module, data: Any, **settings: Any) -> Any:
    return drivetrain.train(model, data, data, runs=folder, epochs=1, batch_size=16, quiet=True, **settings)


@pytest.mark.parametrize(("wrong", "message", "right"), SHAPES.values(), ids=SHAPES)
def test_what_a_message_advises_trains(wrong: Call, message: Message, right: Call, tmp_path: Path) -> None:
    with pytest.raises(DrivetrainError) as raised:
        train(tmp_path, **wrong)
    assert message in str(raised.value)
    assert train(tmp_path, **right).folder.name == "library-001"


def test_several_optimizers_are_blocks_of_prepare(tmp_path: Path) -> None:
    networks = [nn.Linear(6, 2), nn.Linear(6, 2)]
    optimizers: Any = [torch.optim.SGD(network.parameters(), 0.1) for network in networks]
    for call in (
        lambda: train(tmp_path, networks[0], (X, LABELS), optimizer=optimizers),
        lambda: drivetrain.prepare(networks[0], optimizers).__enter__(),
    ):
        with pytest.raises(DrivetrainError) as raised:
            call()
        assert says(str(raised.value), "way-out-blocks")
    blocks = [
        drivetrain.prepare(n, o, loss=F.cross_entropy, quiet=True) for n, o in zip(networks, optimizers, strict=True)
    ]
    with blocks[0] as first, blocks[1] as second:
        for step in (first, second):
            step((X, LABELS))
    assert first.updates == second.updates == 1


def test_an_optimizer_with_a_closure_is_told_to_be_impossible(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    lbfgs = torch.optim.LBFGS(model.parameters())
    for call in (
        lambda: train(tmp_path, model, (X, LABELS), optimizer=lbfgs),
        lambda: drivetrain.prepare(model, lbfgs, loss=F.cross_entropy).__enter__(),
    ):
        with pytest.raises(DrivetrainError) as raised:
            call()
        assert says(str(raised.value), "way-out-own-loop")


def test_a_batch_whose_first_axis_is_the_time_stays_whole() -> None:
    model = nn.GRU(6, 2)
    settings: Call = {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "quiet": True}
    settings["loss"] = lambda outputs, targets: F.mse_loss(outputs[0], targets)
    batch = (X.view(12, 4, 6), X[:, :2].reshape(12, 4, 2))
    with (
        drivetrain.prepare(model, optimize={"micro_batch": 4}, **settings) as step,
        pytest.raises(DrivetrainError) as raised,
    ):
        step(batch)
    assert says(str(raised.value), "way-out-whole-batch")
    with drivetrain.prepare(model, accumulate=2, **settings) as step:
        for lanes in (slice(0, 2), slice(2, 4)):
            step(tuple(part[:, lanes] for part in batch))
    assert step.updates == 1
