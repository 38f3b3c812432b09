"""The options of a training step, fixed while a run is assembled, the little that changes while it trains, and its result.

The result is read from the GPU in one transfer, at the latest possible moment.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.distributed.ranks import ALONE
from drivetrain.system import torch_errors
from drivetrain.system.console import say
from drivetrain.system.signals import Signals
from drivetrain.training.compiled_forward import CompiledForward
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.peers import Peers


class StepResult:
    """The result of a step. Its numbers stay on the device until one of them is looked at.

    Args:
        values: loss and gradient norm, a tensor of shape (2,) on the device.
        finite: whether both are finite, a boolean tensor of shape () on the device.
        on_device: whether the device itself has skipped the update of weights, buffers and scale unless `finite`.
        on_read: called once with `finite`, when the host has read it.
    """

    def __init__(self, values: Tensor, finite: Tensor, on_device: bool, on_read: Callable[[bool], None]) -> None:
        self.device_finite = finite
        """Whether loss and norm are finite: a boolean tensor of shape () on the device."""
        self.on_device = on_device
        self._on_read: Callable[[bool], None] | None = on_read
        self._values = _copy_without_waiting(values) if on_device else values
        self._computed = torch.cuda.Event() if on_device and values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._computed:
            self._computed.record()
        self._numbers: tuple[float, float] | None = None

    def read(self) -> tuple[float, float]:
        """Loss and gradient norm; the first call waits until the device has computed them."""
        if self._numbers is None:
            if self._computed:
                self._computed.synchronize()
            loss, norm = self._values.tolist()
            self._numbers = loss, norm
            on_read, self._on_read = self._on_read, None
            if on_read:
                on_read(self.finite)
        return self._numbers

    @property
    def loss(self) -> float:
        """The loss of the batch before the update."""
        return self.read()[0]

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients before clipping."""
        return self.read()[1]

    @property
    def finite(self) -> bool:
        """False if loss or gradient norm were not finite; the weights are then unchanged."""
        return all(map(math.isfinite, self.read()))


def _copy_without_waiting(values: Tensor) -> Tensor:
    """A copy on the host that is made later; where no memory can be pinned (WSL#8447), one that waits for the GPU."""
    try:
        return values.to("cpu", non_blocking=True)
    except RuntimeError as error:
        if not torch_errors.is_out_of_memory(error):
            raise
        return values.to("cpu")


def build_result(loss: Tensor, norm: Tensor, on_device: bool, on_read: Callable[[bool], None]) -> StepResult:
    """The result of a step from its loss and gradient norm, scalars on the device."""
    values, finite = stack_loss_and_norm(loss, norm)
    return StepResult(values, finite, on_device, on_read)


def stack_loss_and_norm(loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient norm, shape (2,) float64, and whether both are finite, shape ()."""
    values = torch.stack([loss.double(), norm.double()])
    # x - x is 0 for a finite number, else NaN: three kernels, where torch.isfinite launches five.
    return values, (values - values).sum() == 0


class ReplayedSteps(Protocol):
    """Whole steps that are recorded and replayed, as `captured_step` does it."""

    failure: str | None
    """Why nothing is recorded any more."""

    def drop(self) -> None:
        """Forget all recordings."""

    def __call__(self, step: Any, batch: Batch, seed: int, /) -> StepResult | None:
        """The result of a step that was replayed; None if it must be computed as usual."""


@dataclass(frozen=True)
class StepOptions:
    """How a step computes. To change an option, build another step: `Step.with_options`."""

    forward: Callable[..., Any]
    """The forward pass: the whole network, or its layers after a frozen prefix whose outputs are cached."""
    packed_forward: Callable[..., Any] | None = None
    """The same on inputs without padding, if the network can compute that."""
    packed: bool = False
    """Whether `forward` is the one without padding."""
    compiled: CompiledForward | None = None
    """`forward` under torch.compile."""
    captured: ReplayedSteps | None = None
    """Records whole steps as CUDA graphs and replays them."""
    dtype: torch.dtype | None = None
    """The dtype of autocast in the forward pass; None for fp32."""
    scaler: Scaler = field(default_factory=Scaler)
    memory_format: torch.memory_format = torch.contiguous_format
    """The layout that images get before the forward pass; rounding depends on it."""
    batch_size: int | None = None
    """Samples of a full batch that this process computes; None if a forward pass of any size may be compiled."""
    splitter: Callable[[Batch, int], Iterable[Batch]] = Batch.split
    """Splits a batch into micro-batches of at most the given number of samples."""
    min_samples: int = 1
    """Samples that a forward pass needs: two if the network cannot normalize a single one."""
    peers: Peers = field(default_factory=Peers)
    """The processes that train together."""
    exchange: GradientExchange = field(default_factory=partial(GradientExchange, ALONE))
    """Sums the gradients over them."""
    interruptible: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """A context in which a signal may interrupt the step: a compilation takes longer than a user would wait."""
    phase: Callable[[str], AbstractContextManager[None]] = lambda phase: contextlib.nullcontext()
    """The context that measures the time of `forward` or `optimizer`, by that name."""
    report_memory: Callable[[str], None] = say
    """Prints or records that memory ran out, and how the training goes on."""
    report_compile: Callable[[str], None] = say
    """Prints or records that compilation failed; called once."""
    report_numbers: Callable[[str], None] = say
    """Prints or records that an operation has no deterministic kernel; called once."""


@dataclass
class StepState:
    """What changes in a step during the training."""

    micro_batch: int | None = None
    """Samples per micro-batch; None for the whole batch."""
    deterministic_only: bool = False
    """Whether forward and backward pass refuse operations without a deterministic kernel."""
    prefers_device: bool = False
    """Whether the device decides if an update is made, where it can; the host then reads the result later."""
    sample_hashes: list[float] = field(default_factory=list)
    """A hash of the sample ids that each process has computed, by rank, for the digest of the batch."""
    last_result: StepResult | None = None
    """The result of the last step, which is read before that of the next."""
    fell_back: bool = False
    """Whether the step computes in fp32, whatever its options say."""


def build_options(
    model: nn.Module, peers: Peers, part_size: int, signals: Signals, report: Callable[[str, str], None]
) -> StepOptions:
    """The default options of a step, which the optimizations of the plan change.

    Args:
        peers: the processes that train together.
        part_size: samples of a full batch that this process computes.
        signals: may interrupt the forward and the backward pass.
        report: called with the kind of an event and its text.
    """
    return StepOptions(
        forward=model,
        packed_forward=getattr(model, "packed", None),
        batch_size=part_size,
        peers=peers,
        exchange=GradientExchange(peers.ranks),
        interruptible=signals.allow_interruption,
        report_memory=partial(report, "memory"),
        report_compile=partial(report, "compile"),
        report_numbers=partial(report, "numbers"),
    )
