"""One process of several that sum gradients in buckets: python -m tests.exchange_cases FILE; writes what it found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drivetrain.data.dataset import Batch
from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.distributed.ranks import Ranks, join_ranks
from drivetrain.system import interpreter
from drivetrain.training.peers import Peers
from drivetrain.training.step import Step
from drivetrain.training.step_options import StepOptions

STEPS = 3
WIDTH = 16


class Network(nn.Module):
    """Four layers, of which some may be left out in some processes and steps, or be used twice under recomputation."""

    def __init__(self, kind: str, rank: int) -> None:
        super().__init__()
        self.kind, self.rank, self.step = kind, rank, 0
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if self.kind == "twice":
                x = checkpoint(layer, checkpoint(layer, x.requires_grad_(), use_reentrant=True), use_reentrant=True)
            elif not self._left_out(index):
                x = layer(x).tanh()
        return x

    def _left_out(self, index: int) -> bool:
        first, middle = index == 0, index == 2
        return (self.kind == "one" and first and self.rank == 1) or (self.kind == "later" and middle and self.step == 0)


class Total:
    """The sum of all outputs."""

    def denominators(self, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"": torch.ones((), dtype=torch.float64)}

    def __call__(self, outputs: Tensor, targets: Mapping[str, Tensor], over: Mapping[str, Tensor]) -> Tensor:
        return outputs.sum()


class Counting(GradientExchange):
    """Notes how many buckets are sent before the backward pass ends, and how often a step was computed."""

    early = 0
    tries = 0

    def begin(self, *arguments: Any) -> None:
        self.tries += 1
        super().begin(*arguments)

    def finish(self, loss: Tensor | None, notes: Sequence[float] = ()) -> tuple[Tensor | None, list[list[float]]]:
        self.early = len(self._sum_waits)
        return super().finish(loss, notes)


def train_steps(kind: str, ranks: Ranks) -> list[dict[str, Any]]:
    """By step: the gradients, the loss, buckets sent early and tries."""
    torch.manual_seed(0)
    network, exchange = Network(kind, ranks.number), Counting(ranks)
    exchange.overlaps = kind != "after"
    step = Step(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1),
        Total(),  # type: ignore[arg-type]
        None,
        torch.device("cpu"),
        StepOptions(forward=network, peers=Peers(ranks), exchange=exchange),
    )
    if kind == "parts":
        step.use_micro_batch(3)
    inputs = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1))[
        ranks.number :: int(os.environ["DRIVETRAIN_RANKS"])
    ]
    rows = []
    for network.step in range(STEPS):
        exchange.tries = 0
        loss = step.compute_gradients(Batch(np.arange(len(inputs)), (inputs.clone(),), {}), 0)
        rows.append(
            {
                "loss": float(loss),
                "early": exchange.early,
                "tries": exchange.tries,
                "grads": {n: None if p.grad is None else p.grad.tolist() for n, p in network.named_parameters()},
            }
        )
        step.optimizer.zero_grad(set_to_none=True)
    return rows


KINDS = ("plain", "after", "parts", "one", "later", "twice")


def main() -> None:
    vars(gradient_exchange)["BUCKET_BYTES"] = 2 * WIDTH * WIDTH * 4
    ranks = join_ranks(torch.device("cpu"))
    rows = {kind: train_steps(kind, ranks) for kind in KINDS}
    # The same without others: what the sums must be.
    alone = replace(ranks, count=1)
    own_rows = {kind: train_steps(kind, alone) if kind not in ("after", "parts") else None for kind in KINDS}
    Path(f"{sys.argv[1]}.{os.environ['DRIVETRAIN_RANK']}").write_text(json.dumps({"together": rows, "own": own_rows}))
    ranks.leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
