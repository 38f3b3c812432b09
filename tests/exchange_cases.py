"""One process of several that train small networks: python -m tests.exchange_cases FOLDER; writes the weights of each.

Every network is trained twice: with the step of a run, whose processes sum their gradients, and by a loop in this process
alone, which computes the shares of all processes one after another and lets autograd add the gradients up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drivetrain.data.dataset import Batch
from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.batch_sharding import BatchSharding, BatchShare
from drivetrain.distributed.ranks import Ranks, join_ranks
from drivetrain.errors import DrivetrainError
from drivetrain.job.train import Fp16
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.loss_function import Denominators
from drivetrain.system import interpreter
from drivetrain.training.ema import Ema
from drivetrain.training.lockstep import Lockstep
from drivetrain.training.step import Step
from drivetrain.training.updater import Updater

STEPS = 20
WIDTH = 16
BATCH = 13
SIZES = (12, 13, 5)
"""Samples of the batches, in turn: even and uneven shares; then follows a batch of fewer samples than processes."""
CLIP_NORM = 2.0
EMA = 0.9
SKIPPED_STEP = 5
UNFROZEN_STEP = 10
KINDS = (
    "plain",
    "one",
    "later",
    "object",
    "tied",
    "norm",
    "micro",
    "packed",
    "checkpoint",
    "scaled",
    "loss",
    "frozen",
    "unfreeze",
    "kernel",
)
REENTRANT = "reentrant"
"""Kind of a network that several processes refuse."""


@dataclass
class Outputs:
    """What a network returns that does not return a tensor."""

    value: Tensor
    ignored: Tensor
    """An output of its own layer that the loss does not use."""


class Unordered(torch.autograd.Function):
    """An identity whose backward pass, and only that, has no deterministic kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient).put_(torch.arange(gradient.numel()), gradient)


class Network(nn.Module):
    """Four layers with dropout, some of which are left out by some processes and in some steps, and an unused one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.rank, self.step = kind, 0, 0
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(WIDTH) if kind == "norm" else nn.Identity()
        self.extra, self.unused = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH)
        if kind == "tied":
            self.layers[3].weight = self.layers[0].weight
        if kind in ("frozen", "unfreeze"):
            self.layers[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        for index, layer in enumerate(self.layers):
            if self.kind in ("checkpoint", REENTRANT) and index:
                x = checkpoint(layer, x, use_reentrant=self.kind == REENTRANT).tanh()
            elif not self._leaves_out(index):
                x = self.norm(self.dropout(layer(x).tanh()))
                # By then the gradients of later layers are on their way.
                x = Unordered.apply(x) if self.kind == "kernel" and index == 1 else x
        return Outputs(x, self.extra(x)) if self.kind == "object" else x

    def packed(self, x: Tensor) -> Any:
        """Compute the same without `forward`, as a network of texts does it for inputs without padding."""
        return self.forward(x) * 2

    def _leaves_out(self, index: int) -> bool:
        is_first, is_middle = index == 0, index == 2
        return (self.kind == "one" and is_first and self.rank != 1) or (
            self.kind == "later" and is_middle and self.step < STEPS // 2
        )


class Objective:
    """A weighted mean of squares, or a loss of another power as a user may write it."""

    split_obstacle = ""

    def __init__(self, kind: str) -> None:
        self.power = 1.5 if kind == "loss" else 2.0

    def denominators(self, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"": targets["weight"].sum()}

    def start_denominators(
        self, batch: Batch | None, share: BatchShare, ranks: Ranks, device: torch.device
    ) -> Denominators:
        assert batch is not None
        wait_for_sums = ranks.start_sums(list(self.denominators(batch.targets).values()))
        return lambda: {"": wait_for_sums()[0]}

    def compute(self, outputs: Any, batch: Batch, over: Mapping[str, Tensor]) -> Tensor:
        return self(outputs, batch.targets, over)

    def __call__(self, outputs: Any, targets: Mapping[str, Tensor], over: Mapping[str, Tensor]) -> Tensor:
        value = outputs.value if isinstance(outputs, Outputs) else outputs
        losses = (value - targets["value"]).abs().pow(self.power).sum(dim=1)
        return (losses * targets["weight"]).sum() / over[""]


def make_network(kind: str) -> tuple[Network, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = Network(kind).double()
    return network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def make_batch(kind: str, step: int, count: int) -> Batch:
    """The whole batch of a step; the numbers of the last sample are not finite in one step with scaled gradients."""
    # BatchNorm cannot normalize a single sample.
    sizes = (*SIZES, max(count - 1, 2 if kind == "norm" else 1))
    samples, generator = sizes[step % len(sizes)], torch.Generator().manual_seed(step)
    inputs, value = (torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    if kind == "scaled" and step == SKIPPED_STEP:
        inputs[-1] = float("nan")
    weight = torch.rand(samples, generator=generator, dtype=torch.float64) + 0.5
    return Batch(np.arange(samples), (inputs,), {"value": value, "weight": weight})


def seed_of(step: int, rank: int) -> int:
    return 100 * step + rank


def unfreeze(network: Network, kind: str, step: int) -> None:
    network.step = step
    if kind == "unfreeze" and step == UNFROZEN_STEP:
        network.layers[0].requires_grad_(True)


def split_unevenly(batch: Batch, size: int) -> list[Batch]:
    """As texts are split by their length."""
    return [batch.between(0, 1), batch.between(1, len(batch))] if len(batch) > 1 else [batch]


def train_together(kind: str, ranks: Ranks) -> dict[str, Tensor]:
    """The state after all steps of a run, and its averaged weights."""
    network, optimizer = make_network(kind)
    objective = Objective(kind)
    forward = ForwardPass(network, objective, torch.device("cpu"))
    forward.compute = network.packed if kind == "packed" else network
    forward.splitter = split_unevenly if kind == "packed" else Batch.split
    step = Step(forward, Updater(network, optimizer, CLIP_NORM), Lockstep(ranks))
    if kind == "scaled":
        step.scale_losses(Fp16())
    step.use_micro_batch(2 if kind == "micro" else None)
    forward.deterministic_only = kind == "kernel"
    parts, ema = BatchSharding(ranks, BATCH), Ema(network, EMA)
    for number in range(STEPS):
        unfreeze(network, kind, number)
        full_batch = make_batch(kind, number, ranks.world_size)
        ids = parts.select_local(full_batch.ids)
        rank = network.rank = 0 if parts.is_replicated(len(full_batch)) else ranks.rank
        batch = full_batch.between(int(ids[0]), int(ids[-1]) + 1)
        result = step(batch, parts.share(len(full_batch), seed_of(number, rank)))
        ema.update(network, result.finite_on_device)
        assert result.finite == (kind != "scaled" or number != SKIPPED_STEP)
    return {**network.state_dict(), **{f"average of {name}": value for name, value in ema.average.items()}}


def train_by_hand(kind: str, count: int) -> dict[str, Tensor]:
    """The same by plain torch: backward passes over all shares add their gradients up."""
    network, optimizer = make_network(kind)
    objective, updates = Objective(kind), 0
    average = {name: value.clone() for name, value in network.state_dict().items()}
    for number in range(STEPS):
        unfreeze(network, kind, number)
        optimizer.zero_grad()
        full_batch = make_batch(kind, number, count)
        over, buffers = objective.denominators(full_batch.targets), [b.clone() for b in network.buffers()]
        # Rank 0 comes last: its buffers stay.
        for rank, share in reversed(list(share_batch(full_batch, count))):
            for buffer, before in zip(network.buffers(), buffers, strict=True):
                buffer.copy_(before)
            network.rank = rank
            torch.manual_seed(seed_of(number, rank))
            for micro_batch in split_by_hand(share, kind):
                forward = network.packed if kind == "packed" else network
                objective(forward(*micro_batch.inputs), micro_batch.targets, over).backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            optimizer.step()
            updates += 1
            decay = min(EMA, (1 + updates) / (10 + updates))
            for name, value in network.state_dict().items():
                mean = average[name].lerp(value, 1 - decay) if value.is_floating_point() else value.clone()
                average[name] = mean
    return {**network.state_dict(), **{f"average of {name}": value for name, value in average.items()}}


def share_batch(full_batch: Batch, count: int) -> Iterator[tuple[int, Batch]]:
    """The shares of a batch by rank; a small batch is a single share."""
    if len(full_batch) < 2 * count:
        yield 0, full_batch
        return
    for rank in range(count):
        yield rank, full_batch.between(len(full_batch) * rank // count, len(full_batch) * (rank + 1) // count)


def split_by_hand(share: Batch, kind: str) -> list[Batch]:
    if kind == "packed":
        return split_unevenly(share, 0)
    size = 2 if kind == "micro" else len(share)
    return [share.between(start, min(start + size, len(share))) for start in range(0, len(share), size)]


def describe_refusal(ranks: Ranks) -> str:
    """How the training of a network ends whose checkpoints report a gradient twice."""
    try:
        train_together(REENTRANT, ranks)
    except (DrivetrainError, RuntimeError) as error:
        return str(error)
    return "trained"


def main() -> None:
    vars(gradient_exchange)["CPU_BUCKET_MEGABYTES"] = 2 * WIDTH * WIDTH * 8 / 2**20  # several for the small network
    folder, kinds = Path(sys.argv[1]), sys.argv[2:] or KINDS
    ranks = join_ranks(torch.device("cpu"))
    states = {kind: (train_together(kind, ranks), train_by_hand(kind, ranks.world_size)) for kind in kinds}
    torch.save(states, folder / f"{ranks.rank}.pt")
    (folder / f"{ranks.rank}.txt").write_text(describe_refusal(ranks))
    ranks.leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
