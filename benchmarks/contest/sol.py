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
from benchmarks.contest.task import CLIP_NORM, LEARNING_RATE, Task

MIN_BF16_SPEEDUP = 1.03
"""bf16 is chosen if it is at least this many times faster."""


class SplitTensors:
    """A split as tensors."""

    def __init__(self, task: Task, split: Any) -> None:
        ids = np.arange(len(split))
        inputs = task.data.prepare(split.gather(ids), ids, None)
        if task.has_images:
            inputs = tuple(x.contiguous(memory_format=torch.channels_last) for x in inputs)
        labels = list(split.targets.values())
        self.set_tensors(inputs, labels[0] if len(labels) == 1 else torch.stack(labels, dim=1), task.has_texts)

    def set_tensors(self, inputs: tuple[Tensor, ...], labels: Tensor, ragged: bool) -> None:
        """Keep these; ragged ones end with the mask of their real tokens."""
        self.inputs, self.labels = inputs, labels
        self.lengths = inputs[-1].sum(1).numpy() if ragged else None

    def __len__(self) -> int:
        return len(self.labels)

    def count_samples(self, ids: Tensor) -> int:
        """Samples, or tokens of texts."""
        return len(ids) if self.lengths is None else int(self.lengths[ids.numpy()].sum())

    def make_batch(self, ids: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs, no longer than the longest of them, and labels."""
        if self.lengths is None:
            return tuple(x.index_select(0, ids) for x in self.inputs), self.labels[ids]
        longest = int(self.lengths[ids.numpy()].max())
        return tuple(x[ids, :longest] for x in self.inputs), self.labels[ids]


class Loop:
    """Network, optimizer and step."""

    def __init__(self, task: Task, precision: str) -> None:
        self.task = task
        self.model = task.build_network()
        if task.has_images:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in self.model.modules():
            if list(module.parameters()) and not any(p.requires_grad for p in module.parameters()):
                module.eval()
        self.forward: Callable[..., Any] = self.model.packed if task.has_texts else self.model  # type: ignore[assignment]
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trainable, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    def step(self, samples: SplitTensors, ids: Tensor) -> None:
        """One step."""
        inputs, labels = samples.make_batch(ids)
        with self.autocast:
            loss = self.task.compute_loss(self.forward(*inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trainable, CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train_epoch(self, samples: SplitTensors, after_step: Callable[[int], None]) -> None:
        """One pass in random order."""
        for ids in torch.randperm(len(samples)).split(self.task.batch_size):
            self.step(samples, ids)
            after_step(samples.count_samples(ids))

    def score(self, samples: SplitTensors) -> float:
        """Accuracy, mean over the heads."""
        right = 0.0
        with torch.no_grad(), self.autocast:
            for ids in torch.arange(len(samples)).split(self.task.batch_size):
                inputs, labels = samples.make_batch(ids)
                right += self.task.count_right(self.forward(*inputs), labels)
        return right / len(samples)


def choose_precision(task: Task, samples: SplitTensors) -> str:
    """The format in which steps are faster here."""
    seconds = {}
    for precision in ("fp32", "bf16"):
        loop = Loop(task, precision)
        batches = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).split(task.batch_size)
        for ids in batches[:2]:
            loop.step(samples, ids)
        start = time.perf_counter()
        for ids in batches[2:6]:
            loop.step(samples, ids)
        seconds[precision] = time.perf_counter() - start
    return "bf16" if seconds["fp32"] > MIN_BF16_SPEEDUP * seconds["bf16"] else "fp32"


def count_operations(task: Task, samples: SplitTensors) -> float:
    """Floating-point operations of a sample or token in a training step, as torch counts them."""
    loop, ids = Loop(task, "fp32"), torch.randperm(len(samples))[: 2 * task.batch_size]
    with FlopCounterMode(display=False) as counter:
        loop.step(samples, ids)
    return counter.get_total_flops() / samples.count_samples(ids)


def train_by_order(task: Task, samples: SplitTensors, pace: Pace) -> None:
    """Train by order."""
    loop = Loop(task, task.precision)
    while True:
        loop.train_epoch(samples, pace.end_step)


def train_whole(task: Task, train: SplitTensors, validation: SplitTensors, cached: bool) -> int:
    """A whole run, with the pass that computes a frozen prefix; returns its samples or tokens."""
    loop, sample_count = Loop(task, task.precision), train.count_samples(torch.arange(len(train))) * task.epochs
    if cached:
        train, validation = (_compute_prefix(loop, samples) for samples in (train, validation))
    for _ in range(task.epochs):
        loop.model.train()
        loop.train_epoch(train, lambda sample_count: None)
        loop.model.eval()
        loop.score(validation)
    return sample_count


def _compute_prefix(loop: Loop, samples: SplitTensors) -> SplitTensors:
    """The outputs of the frozen prefix for the samples; the loop then computes only the rest."""
    first, _ = samples.make_batch(torch.arange(1))
    loop.model.eval()
    division: Any = loop.model.split_at_frozen(*first)
    prefix_outputs = SplitTensors.__new__(SplitTensors)
    lengths = samples.lengths
    order = torch.arange(len(samples)) if lengths is None else torch.from_numpy(np.argsort(-lengths, kind="stable"))
    outputs: list[Tensor] = [torch.empty(0)] * len(samples)
    with torch.no_grad(), loop.autocast:
        for ids in order.split(4 * loop.task.batch_size):
            inputs = tuple(x[ids] for x in samples.inputs)
            if lengths is not None:
                inputs = tuple(x[:, : int(lengths[ids.numpy()].max())] for x in inputs)
            for number, row in zip(ids.tolist(), division.prefix(*inputs)[0].float(), strict=True):
                outputs[number] = row if lengths is None else row[: lengths[number]]
    if lengths is None:
        prefix_outputs.set_tensors((torch.stack(outputs),), samples.labels, False)
    else:
        prefix_outputs.set_tensors(
            (nn.utils.rnn.pad_sequence(outputs, batch_first=True), samples.inputs[-1]), samples.labels, True
        )
    loop.forward = division.rest if lengths is None else division.packed
    return prefix_outputs
