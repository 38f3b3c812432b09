"""The options of a training step, fixed while a run is assembled, and the little that changes while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.distributed.ranks import ALONE, Ranks
from drivetrain.system.console import say
from drivetrain.system.signals import Signals
from drivetrain.training.compiled_forward import CompiledForward
from drivetrain.training.grad_scaler import Scaler
from drivetrain.training.step_result import StepResult


def count_no_phase(phase: str) -> AbstractContextManager[None]:
    """Count no phase of a step apart."""
    return contextlib.nullcontext()


@dataclass(frozen=True)
class SeededPart:
    """A part of a batch that goes through the network by itself, with its own dropout and BatchNorm statistics."""

    samples: int
    seed: int


Seeded = int | Sequence[SeededPart]
"""The parts of this process, one after another in its samples, each with the seed of its dropout; a seed for one part."""


def parts_of(samples: int, seeded: Seeded) -> Sequence[SeededPart]:
    """The parts of a batch of `samples`."""
    return [SeededPart(samples, seeded)] if isinstance(seeded, int) else seeded


def largest(parts: Iterable[SeededPart]) -> int:
    """Samples of the largest part."""
    return max(part.samples for part in parts)


class ReplayedSteps(Protocol):
    """Whole steps that are recorded and replayed, as `captured_step` does it."""

    failure: str | None
    """Why nothing is recorded any more."""

    def drop(self) -> None:
        """Forget all recordings."""

    def __call__(self, step: Any, batch: Batch, parts: Sequence[SeededPart], /) -> StepResult | None:
        """The result of a step that was replayed; None if it must be computed as usual."""


@dataclass(frozen=True)
class StepOptions:
    """How a step computes. To change an option, build another step: `Step.with_options`."""

    forward: Callable[..., Any]
    """What is computed of the network: all of it, or what follows a prefix whose outputs are cached."""
    packed_forward: Callable[..., Any] | None = None
    """The same without padding, if the network can compute that."""
    packed: bool = False
    """Whether `forward` is the one without padding."""
    compiled: CompiledForward | None = None
    """`forward`, compiled."""
    captured: ReplayedSteps | None = None
    """Whole steps, recorded and replayed."""
    dtype: torch.dtype | None = None
    """Of autocast in the forward pass; None for fp32."""
    scaler: Scaler = field(default_factory=Scaler)
    memory_format: torch.memory_format = torch.contiguous_format
    """Of images before the forward pass, however they were read: rounding depends on the memory format."""
    batch_size: int | None = None
    """Samples of a part of a whole batch; None if any number may be compiled."""
    splitter: Callable[[Batch, int], Iterable[Batch]] = Batch.split
    """Splits a batch into micro-batches of at most the given number of samples."""
    least: int = 1
    """Samples that the network needs at once: two, if it cannot normalize a single one."""
    ranks: Ranks = ALONE
    exchange: GradientExchange = field(default_factory=partial(GradientExchange, ALONE))
    """Sums the gradients of these processes."""
    divided: bool = False
    """Whether each process holds a part of the weights, so that all must compute the same number of passes."""
    interruptible: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Context in which a signal may interrupt: compilation takes longer than a user would wait."""
    phase: Callable[[str], AbstractContextManager[None]] = count_no_phase
    """Context around the forward pass and the update, by their names."""
    report_memory: Callable[[str], None] = say
    """Reports that memory ran out, and what follows."""
    report_compile: Callable[[str], None] = say
    """Reports, once, that compilation failed."""
    report_numbers: Callable[[str], None] = say
    """Reports, once, that an operation has no deterministic kernel."""


@dataclass
class StepState:
    """What changes in a step while it trains."""

    micro_batch: int | None = None
    """Samples at a time; None for the whole batch."""
    strict: bool = False
    """Whether operations without a deterministic kernel are refused in the forward and the backward pass."""
    on_device: bool = False
    """Whether the device decides by itself if an update is made, where it can; the host then reads the result later."""
    samples: int | None = None
    """Samples of the present batch that all processes compute; None if only their sum tells."""
    share: float = 1.0
    """The share of the present batch that this process computes, among equals; 1 if each computes the whole."""
    samples_of: list[float] = field(default_factory=list)
    """The number of the samples that each process has computed, by rank, for the digest of the batch."""
    parts: int = 1
    """Parts of the present batch that this process computes one after another."""
    last: StepResult | None = None
    """The result of the last step, which must be read before that of the next."""
    fallen_back: bool = False
    """Whether it computes in fp32, whatever its options say."""


def plain_options(
    model: nn.Module, ranks: Ranks, size: int, signals: Signals, report: Callable[[str, str], None]
) -> StepOptions:
    """The options of the plain step, which the optimizations of the plan change.

    Args:
        ranks: this process among those that train together.
        size: samples of a part of a whole batch.
        signals: interrupt the forward and the backward pass.
        report: takes a kind and a text.
    """
    return StepOptions(
        forward=model,
        packed_forward=getattr(model, "packed", None),
        batch_size=size,
        ranks=ranks,
        exchange=GradientExchange(ranks, signals.held),
        interruptible=signals.released,
        report_memory=partial(report, "memory"),
        report_compile=partial(report, "compile"),
        report_numbers=partial(report, "numbers"),
    )
