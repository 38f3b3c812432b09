"""The parts of a run that an optimization may read and change; the packages of plan and training stand above."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from runtime.optimizations.interface.choice import Value

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

    from runtime.data.dataset import Batch, Dataset, Inputs
    from runtime.data.loader.batches import Batches
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.train import Fp16


class AssembledPlan(Protocol):
    """What an optimization may read of the plan, whose package is above this one."""

    def value(self, name: str) -> Value:
        """The value decided for one optimization."""
        ...


class AssembledEvents(Protocol):
    """The event log, in which an optimization reports what it could not do."""

    def add(self, kind: str, text: str, /) -> None:
        """Record an event of the run."""
        ...


class AssembledExchange(Protocol):
    """The exchange of gradients between processes."""

    @property
    def dtype(self) -> torch.dtype | None:
        """In which gradients are sent and summed; None for their own."""
        ...

    def send_as(self, dtype: torch.dtype) -> None:
        """Send and sum them in another format, if there are several processes."""
        ...


class AssembledOptions(Protocol):
    """The options of the training step; they are fixed, and `configure_step` of the run gives it others."""

    @property
    def packed_forward(self) -> Callable[..., Any] | None:
        """The forward pass without padding, if the network can compute that."""
        ...

    @property
    def packed(self) -> bool:
        """Whether the forward pass is the one without padding."""
        ...

    @property
    def memory_format(self) -> torch.memory_format:
        """Of images before the forward pass."""
        ...

    @property
    def exchange(self) -> AssembledExchange:
        """Sums gradients over the processes."""
        ...

    @property
    def splitter(self) -> Callable[[Batch, int], Iterable[Batch]]:
        """Splits a batch into micro-batches."""
        ...


class AssembledStep(Protocol):
    """What an optimization may read of the training step."""

    @property
    def options(self) -> AssembledOptions:
        """How it computes."""
        ...

    @property
    def dtype(self) -> torch.dtype | None:
        """The autocast dtype of the forward pass; None for fp32."""
        ...

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch size; None for the whole batch."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether the forward pass is compiled."""
        ...

    @property
    def graphs(self) -> bool:
        """Whether compiled kernels are recorded as a CUDA graph and replayed."""
        ...

    def use_micro_batch(self, samples: int | None) -> None:
        """Compute so many samples at a time from now on."""
        ...

    def laid_out(self, inputs: Inputs) -> Inputs:
        """The inputs in this step's memory format."""
        ...


class AssembledTimer(Protocol):
    """The phase timer of a run, with which an optimization records the time of its own work."""

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        """Count the time of the `with` block under this phase."""
        ...


class AssembledRun(Protocol):
    """What an optimization may use of a run; mypy checks that the Run of the training package fits."""

    dataset: Dataset
    replaced: Dataset | None
    cached: str
    prefix_dtype: torch.dtype | None

    @property
    def stage(self) -> int:
        """How many unfreezings of `model.unfreeze` have happened."""
        ...

    @property
    def job(self) -> Job:
        """The user's request."""
        ...

    @property
    def hardware(self) -> Hardware:
        """The usable machine."""
        ...

    @property
    def plan(self) -> AssembledPlan:
        """All decisions."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        ...

    @property
    def model(self) -> nn.Module:
        """The network."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Over its trainable parameters."""
        ...

    @property
    def batches(self) -> Batches:
        """The training batches."""
        ...

    @property
    def step(self) -> AssembledStep:
        """The training step."""
        ...

    def configure_step(self, **options: object) -> None:
        """Give the step other options."""
        ...

    def autocast_step(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> None:
        """Run the step's forward pass under autocast, and scale its gradients if `scaling` is given."""
        ...

    def compile_step(self, *, graphs: bool = False) -> None:
        """Compile the step's forward pass."""
        ...

    def divide(self) -> None:
        """Divide weights, gradients and optimizer state among the processes, if there are several."""
        ...

    @property
    def folder(self) -> Path:
        """The run folder."""
        ...

    @property
    def clock(self) -> AssembledTimer:
        """The phase timer of the run."""
        ...

    @property
    def events(self) -> AssembledEvents:
        """The events of the run."""
        ...
