"""Programs with several inputs, as items, nested or in arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tests.supervisor.programs.comparison import (
    Refusal,
    Training,
    X,
    Y,
    check_refusal,
    check_training,
    cut,
    mlp,
    no_report,
    run_steps,
    train,
)

__all__ = ["no_report"]


class Pairs(Dataset[Any]):
    """Items of two inputs and a target."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return X[index], X[(7 * index + 3) % len(X)], Y[index]


class NestedPairs(Pairs):
    def __getitem__(self, index: int) -> Any:
        *inputs, target = super().__getitem__(index)
        return tuple(inputs), target


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(16, 3)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        outputs: Tensor = self.network(torch.cat([one, two], 1))
        return outputs


CROSS_ENTROPY = nn.CrossEntropyLoss()
TRAININGS = {
    "items of two inputs": Training(Joined, Pairs(), CROSS_ENTROPY),
    "nested items": Training(Joined, NestedPairs(), CROSS_ENTROPY),
    "arrays of two inputs": Training(Joined, TensorDataset(X, X.roll(1, 0), Y), CROSS_ENTROPY),
}
REFUSALS = {
    "items that are mappings": Refusal(
        lambda folder: train(folder, mlp(), [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]),
        ("sample 0 is a dict of 2", "(inputs, target)", "prepare"),
        lambda folder: run_steps(mlp(), cut(X, Y)),
    ),
    "too many inputs": Refusal(
        lambda folder: run_steps(mlp(), [(*batch, None) for batch in cut(X, X)]),
        ("the batch has 2 inputs", "too many positional arguments"),
        lambda folder: run_steps(mlp(), cut(X, Y)),
    ),
}


@pytest.mark.parametrize("program", TRAININGS.values(), ids=TRAININGS)
def test_several_inputs_are_trained_as_by_hand(program: Training, tmp_path: Path) -> None:
    check_training(program, tmp_path)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused_inputs_have_another_way(refusal: Refusal, tmp_path: Path) -> None:
    check_refusal(refusal, tmp_path)
