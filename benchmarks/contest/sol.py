"""SOL (speed of light), the reference: a loop by hand on tensors that are ready in memory, that does only the work the task needs.

Images are normalized once and lie in the layout that convolutions like; texts stand in one row, so that no padding is
computed; what a frozen prefix gives is computed once. No records, no checks, no checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.contest.pace import Pace
from benchmarks.contest.task import CLIP, RATE, Task

BETTER = 1.03
"""So much faster must bf16 be to be taken."""


class Ready:
    """A split as tensors."""

    def __init__(self, task: Task, split: Any) -> None:
        ids = np.arange(len(split))
        inputs = task.data.prepare(split.gather(ids), ids, None)
        if task.images:
            inputs = tuple(x.contiguous(memory_format=torch.channels_last) for x in inputs)
        labels = list(split.targets.values())
        self.hold(inputs, labels[0] if len(labels) == 1 else torch.stack(labels, dim=1), task.texts)

    def hold(self, inputs: tuple[Tensor, ...], labels: Tensor, ragged: bool) -> None:
        """Keep these; ragged ones end with the mask of their real tokens."""
        self.inputs, self.labels = inputs, labels
        self.lengths = inputs[-1].sum(1).numpy() if ragged else None

    def __len__(self) -> int:
        return len(self.labels)

    def amount(self, ids: Tensor) -> int:
        """Samples, or tokens of texts."""
        return len(ids) if self.lengths is None else int(self.lengths[ids.numpy()].sum())

    def batch(self, ids: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs, no longer than the longest of them, and labels."""
        if self.lengths is None:
            return tuple(x.index_select(0, ids) for x in self.inputs), self.labels[ids]
        longest = int(self.lengths[ids.numpy()].max())
        return tuple(x[ids, :longest] for x in self.inputs), self.labels[ids]


class Loop:
    """Network, optimizer and step."""

    def __init__(self, task: Task, precision: str) -> None:
        self.task = task
        self.model = task.network()
        if task.images:
            self.model.to(memory_format=torch.channels_last)
        for module in self.model.modules():
            if list(module.parameters()) and not any(p.requires_grad for p in module.parameters()):
                module.eval()
        self.forward: Callable[..., Any] = self.model.packed if task.texts else self.model  # type: ignore[assignment]
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=RATE, weight_decay=0.0, fused=True)
        self.cast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    def step(self, ready: Ready, ids: Tensor) -> None:
        """One step."""
        inputs, labels = ready.batch(ids)
        with self.cast:
            loss = self.task.loss(self.forward(*inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def epoch(self, ready: Ready, after: Callable[[int], None]) -> None:
        """One pass in random order."""
        for ids in torch.randperm(len(ready)).split(self.task.batch):
            self.step(ready, ids)
            after(ready.amount(ids))

    def score(self, ready: Ready) -> float:
        """Accuracy, mean over the heads."""
        right = 0.0
        with torch.no_grad(), self.cast:
            for ids in torch.arange(len(ready)).split(self.task.batch):
                inputs, labels = ready.batch(ids)
                right += self.task.right(self.forward(*inputs), labels)
        return right / len(ready)


def quicker(task: Task, ready: Ready) -> str:
    """The format in which steps are faster here."""
    seconds = {}
    for precision in ("fp32", "bf16"):
        loop = Loop(task, precision)
        batches = torch.randperm(len(ready), generator=torch.Generator().manual_seed(0)).split(task.batch)
        for ids in batches[:2]:
            loop.step(ready, ids)
        start = time.perf_counter()
        for ids in batches[2:6]:
            loop.step(ready, ids)
        seconds[precision] = time.perf_counter() - start
    return "bf16" if seconds["fp32"] > BETTER * seconds["bf16"] else "fp32"


def operations(task: Task, ready: Ready) -> float:
    """Floating-point operations of a sample or token in a training step, as torch counts them."""
    loop, ids = Loop(task, "fp32"), torch.randperm(len(ready))[: 2 * task.batch]
    with FlopCounterMode(display=False) as counter:
        loop.step(ready, ids)
    return counter.get_total_flops() / ready.amount(ids)


def steps(task: Task, ready: Ready, pace: Pace) -> None:
    """Train by order."""
    loop = Loop(task, task.precision)
    while True:
        loop.epoch(ready, pace.step)


def whole(task: Task, train: Ready, held: Ready, cached: bool) -> int:
    """A whole run, with the pass that computes a frozen prefix; what its steps count."""
    loop, count = Loop(task, task.precision), train.amount(torch.arange(len(train))) * task.epochs
    if cached:
        train, held = (_computed(loop, ready) for ready in (train, held))
    for _ in range(task.epochs):
        loop.model.train()
        loop.epoch(train, lambda count: None)
        loop.model.eval()
        loop.score(held)
    return count


def _computed(loop: Loop, ready: Ready) -> Ready:
    """The samples as what the frozen prefix gives for them; the loop then computes the rest alone."""
    first, _ = ready.batch(torch.arange(1))
    loop.model.eval()
    division: Any = loop.model.split_at_frozen(*first)
    made = Ready.__new__(Ready)
    lengths = ready.lengths
    order = torch.arange(len(ready)) if lengths is None else torch.from_numpy(np.argsort(-lengths, kind="stable"))
    found: list[Tensor] = [torch.empty(0)] * len(ready)
    with torch.no_grad(), loop.cast:
        for ids in order.split(4 * loop.task.batch):
            inputs = tuple(x[ids] for x in ready.inputs)
            if lengths is not None:
                inputs = tuple(x[:, : int(lengths[ids.numpy()].max())] for x in inputs)
            for number, row in zip(ids.tolist(), division.prefix(*inputs)[0].float(), strict=True):
                found[number] = row if lengths is None else row[: lengths[number]]
    if lengths is None:
        made.hold((torch.stack(found),), ready.labels, False)
    else:
        made.hold((nn.utils.rnn.pad_sequence(found, batch_first=True), ready.inputs[-1]), ready.labels, True)
    loop.forward = division.rest if lengths is None else division.packed
    return made
