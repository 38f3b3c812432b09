"""A run as optimizations see it. The packages of plan, tracking and training stand above this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from drivetrain.optimizations.interface.choice import Value

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

    from drivetrain.data.dataset import Dataset
    from drivetrain.data.loader.batches import Batches
    from drivetrain.hardware.facts import Hardware
    from drivetrain.job import Job
    from drivetrain.job.train import Fp16
    from drivetrain.models.forward_pass import ForwardPass


class ReadablePlan(Protocol):
    """`plan.plan.Plan`."""

    def value(self, name: str) -> Value: ...


class EventRecorder(Protocol):
    """`tracking.event_log.EventLog`, where an optimization reports its failures."""

    def add(self, kind: str, text: str, /) -> None: ...


class Timer(Protocol):
    """`training.phase_timer.PhaseTimer`, where an optimization records the time of its own work."""

    def phase(self, name: str, /) -> AbstractContextManager[None]: ...


class ConfigurableStep(Protocol):
    """`training.step.Step`."""

    @property
    def forward(self) -> ForwardPass: ...

    def use_micro_batch(self, samples: int | None) -> None: ...

    def scale_losses(self, scaling: Fp16) -> None: ...

    def compile(self, *, graphs: bool = False) -> None: ...


class NetworkRun(Protocol):
    """A network and its training step on a device; a loop of the user has no more."""

    @property
    def job(self) -> Job: ...

    @property
    def hardware(self) -> Hardware: ...

    @property
    def plan(self) -> ReadablePlan: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def step(self) -> ConfigurableStep: ...


class AssembledRun(NetworkRun, Protocol):
    """`training.run.Run`: the same with its data and its folder."""

    dataset: Dataset
    uncached_dataset: Dataset | None
    cached_prefix: str
    prefix_dtype: torch.dtype | None

    @property
    def folder(self) -> Path: ...

    @property
    def batches(self) -> Batches: ...

    @property
    def events(self) -> EventRecorder: ...

    @property
    def clock(self) -> Timer: ...

    @property
    def stage(self) -> int: ...

    def capture_steps(self) -> None:
        """Capture whole steps as CUDA graphs and replay them."""
