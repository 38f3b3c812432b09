"""Programs with losses of other kinds: of views, triplets, codes, quantiles, teachers, labels and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.messages import says
from tests.supervisor.programs.comparison import (
    NUMBERS,
    Loop,
    Training,
    W,
    X,
    Y,
    check_loop,
    check_training,
    cut,
    draw,
    mlp,
    no_report,
    plain_pair,
    run_steps,
)

__all__ = ["no_report"]


class Encoder(nn.Module):
    """A variational autoencoder: what it restores, with mean and spread of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.restore = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, spread = self.code(x).chunk(2, 1)
        return self.restore(mean + torch.randn_like(mean) * spread.exp()), mean, spread


def variational(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    restored, mean, spread = outputs
    return F.mse_loss(restored, x) + 0.1 * (mean.pow(2) + spread.exp() - spread).mean()


class Views(nn.Module):
    """One network over several inputs; their outputs as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp(4)

    def forward(self, *views: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(self.network, views))


def contrast(outputs: Sequence[Tensor], targets: Any) -> Tensor:
    codes = F.normalize(torch.cat([*outputs]), dim=1)
    count = len(codes) // 2
    likeness = (codes @ codes.T / 0.5).masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
    return F.cross_entropy(likeness, torch.arange(2 * count).roll(count))


class Student(nn.Module):
    """A student next to its frozen teacher: the outputs of both."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(), mlp().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.student(x), self.teacher(x)], 1)


def distill(outputs: Tensor, targets: Tensor) -> Tensor:
    ours, theirs = outputs.chunk(2, 1)
    return F.cross_entropy(ours, targets) + F.kl_div(F.log_softmax(ours, 1), theirs.softmax(1), reduction="batchmean")


def quantiles(outputs: Tensor, targets: Tensor) -> Tensor:
    levels = torch.tensor([0.1, 0.5, 0.9])
    errors = targets.reshape(-1, 1) - outputs
    return torch.maximum(levels * errors, (levels - 1) * errors).mean()


TRIPLETS = [((x, x.roll(1, 0), x.roll(2, 0)), None) for (x,) in cut(X)]
NOISY = [((x, x + 0.1 * draw(16, 8, seed=3)), None) for (x,) in cut(X)]


def hand_views(loss: Callable[..., Any]) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: loss(model(*batch[0]), batch[1])


def triplet(outputs: Any, targets: Any) -> Tensor:
    return F.triplet_margin_loss(*outputs)


class Enlarger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


CROSS_ENTROPY = nn.CrossEntropyLoss()
SMALL = F.avg_pool2d(draw(96, 1, 8, 8), 2)
LOOPS = {
    "a variational autoencoder": plain_pair(variational, Encoder, cut(X, X)),
    "two views": Loop(Views, NOISY, hand_views(contrast), contrast),
    "triplets": Loop(Views, TRIPLETS, hand_views(triplet), triplet),
    "triplets, flat": Loop(
        Views,
        [(*inputs, target) for inputs, target in TRIPLETS],
        lambda model, batch: triplet(model(*batch[:-1]), None),
        triplet,
    ),
    "distillation": plain_pair(distill, Student, cut(X, Y)),
    "quantiles": plain_pair(quantiles, mlp, cut(X, NUMBERS)),
}
TRAININGS = {
    "classes": Training(mlp, TensorDataset(X, Y), CROSS_ENTROPY),
    "weighted classes": Training(mlp, TensorDataset(X, Y), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))),
    "log probabilities": Training(lambda: mlp().append(nn.LogSoftmax(1)), TensorDataset(X, Y), F.nll_loss),
    "labels": Training(mlp, TensorDataset(X, F.one_hot(Y, 3)), lambda o, t: F.multilabel_soft_margin_loss(o, t)),
    "several numbers": Training(mlp, TensorDataset(X, X @ W), nn.MSELoss()),
    "pictures to pictures": Training(Enlarger, TensorDataset(SMALL, draw(96, 1, 8, 8)), nn.L1Loss()),
}


@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_with_its_loss_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)


@pytest.mark.parametrize("program", TRAININGS.values(), ids=TRAININGS)
def test_losses_train_as_by_hand(program: Training, tmp_path: Path) -> None:
    check_training(program, tmp_path)


def test_a_trainable_loss_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Centers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.zeros(3, 3))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - self.centers[targets]).pow(2).mean()

    for loss in (Centers(), Centers().forward):
        run_steps(mlp(), cut(X, Y), loss=loss)
        assert says(capsys.readouterr().out, "loss-not-trained-here", "centers")
