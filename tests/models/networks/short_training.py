"""A few steps of a network."""

from __future__ import annotations

import torch
from torch import nn


def train_network(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
