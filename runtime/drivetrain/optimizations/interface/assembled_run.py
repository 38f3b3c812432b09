"""The part of a run that optimizations read and change; the runs of training and of a user's loop inherit it.

The packages of plan, tracking and training stand above this one. The Protocols name the few things that optimizations
use of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from drivetrain.optimizations.interface.choice import Value

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

    from drivetrain.data.dataset import Batch, Dataset, Inputs
    from drivetrain.data.loader.batches import Batches
    from drivetrain.hardware.facts import Hardware
    from drivetrain.job import Job
    from drivetrain.job.train import Fp16


class ReadablePlan(Protocol):
    """`plan.plan.Plan`."""

    def value(self, name: str) -> Value: ...


class EventRecorder(Protocol):
    """`tracking.event_log.EventLog`, in which an optimization reports what it could not do."""

    def add(self, kind: str, text: str, /) -> None: ...


class Timer(Protocol):
    """`training.phase_timer.PhaseTimer`, with which an optimization records the time of its own work."""

    def phase(self, name: str, /) -> AbstractContextManager[None]: ...


class ReadableOptions(Protocol):
    """`training.step_options.StepOptions`."""

    @property
    def packed_forward(self) -> Callable[..., Any] | None: ...

    @property
    def packed(self) -> bool: ...

    @property
    def memory_format(self) -> torch.memory_format: ...

    @property
    def splitter(self) -> Callable[[Batch, int], Iterable[Batch]]: ...


class ConfigurableStep(Protocol):
    """`training.step.Step`. Its options are fixed: a step with others is a new one."""

    @property
    def options(self) -> ReadableOptions: ...

    @property
    def dtype(self) -> torch.dtype | None: ...

    @property
    def micro_batch(self) -> int | None: ...

    @property
    def compiled(self) -> bool: ...

    @property
    def graphs(self) -> bool: ...

    @property
    def records(self) -> bool: ...

    def with_options(self, **changes: Any) -> Self: ...

    def autocast(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> Self: ...

    def compile(self, *, graphs: bool = False) -> Self: ...

    def use_micro_batch(self, samples: int | None) -> None: ...

    def lay_out(self, inputs: Inputs) -> Inputs: ...


@dataclass(kw_only=True)
class NetworkRun:
    """A network and its training step on a device; all that a loop of the user's own has of a run."""

    job: Job
    hardware: Hardware
    plan: ReadablePlan
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: ConfigurableStep

    def configure_step(self, **options: object) -> None:
        """Give the step other options."""
        self.step = self.step.with_options(**options)

    def autocast_step(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> None:
        """Run the step's forward pass under autocast, and scale its gradients if `scaling` is given."""
        self.step = self.step.autocast(dtype, scaling)

    def compile_step(self, *, graphs: bool = False) -> None:
        """Compile the step's forward pass."""
        self.step = self.step.compile(graphs=graphs)


@dataclass(kw_only=True)
class AssembledRun(NetworkRun):
    """A run with its data and its folder. The methods without a body belong to `training.run.Run`."""

    folder: Path
    dataset: Dataset
    batches: Batches
    events: EventRecorder
    clock: Timer
    replaced: Dataset | None = None
    """The original dataset, if cached activations of a frozen prefix have replaced it."""
    cached: str = ""
    """The name of that prefix."""
    stage: int = 0
    """How many unfreezings of `model.unfreeze` have happened."""
    prefix_dtype: torch.dtype | None = None
    """dtype in which a frozen prefix is computed once; None for fp32."""

    def record_step(self) -> None:
        """Record whole steps as CUDA graphs and replay them."""
        raise NotImplementedError
