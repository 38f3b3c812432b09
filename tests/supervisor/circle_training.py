"""A loop of a user's own, which trains a network on points in a circle."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    Dataset,
    TensorDataset,
)

from drivetrain.library import embedded_run
from drivetrain.supervisor.run_lifecycle import RunLifecycle


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report takes a process of its own; the script at the end writes one."""
    monkeypatch.setattr(RunLifecycle, "report", lambda run, output: None)


def make_circle(samples: int, seed: int = 0) -> TensorDataset:
    points = torch.rand(samples, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.75).long())


def build_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def have_same_bits(one: embedded_run.Result, two: embedded_run.Result) -> bool:
    """Whether two trainings ended with the same bits."""
    first, second = one.model.state_dict(), two.model.state_dict()
    return one.best == two.best and all(torch.equal(first[name], second[name]) for name in first)


class InterruptingPoints(Dataset[Any]):
    """A map-style dataset that presses Ctrl-C at one of its items, once."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.x, self.y = make_circle(120).tensors
        self.stop_at, self.fetched_items = stop_at, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched_items += 1
        if self.fetched_items == self.stop_at:
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGINT)
        return self.x[index], self.y[index]


X, Y = make_circle(120).tensors


class CirclePoints(Dataset[Any]):
    """The points one by one."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]
