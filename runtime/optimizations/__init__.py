"""The optimizations: one file each. They are found by listing this folder; there is no registry.

The file name is the key under `optimize:`, the row in the plan, the line in the report and the test id. A file holds

    STAGE, EFFECT, OFF, Values                          EFFECT may be a function of the workload
    choose(job, hardware, workload) -> Choice           the default and its reason; workload may be None
    refuse(job, hardware, workload, value) -> str|None  why a requested value is not possible
    candidates(job, hardware, workload) -> list         values that the tuner compares; one value: not measured
    apply(run, value) -> None                           with `effective`, the only part that touches torch
    effective(run) -> value                             the effective value, read back after assembly

and, for a setting that must be made before the process starts, environment(hardware, value) -> dict, with
preloaded() -> value if it preloads a library; for one that applies to some machines or jobs only,
lacks(job, hardware) -> str|None: what is missing here, in two or three words.

`run` is an AssembledRun: the parts of `runtime.training.run.Run` that an optimization may read and change.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

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
    from runtime.job.workload import Workload

Value = bool | int | float | str


class Stage(IntEnum):
    """When an optimization is applied, in the order of the members."""

    PROCESS = 0
    LOADER = 1
    MODEL = 2
    OPTIMIZER = 3
    STEP = 4
    COMPILE = 5


class Effect(StrEnum):
    """What an optimization may change: nothing, the rounding, or the training itself."""

    EXACT = "exact"
    ROUNDING = "rounding"
    TRAINING = "training"


@dataclass(frozen=True)
class Choice:
    """A value and its reason."""

    value: Value
    reason: str
    provisional: bool = False
    """Whether a measurement may well find another value, although it depends on neither model nor data."""


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
    prefix_dtype: torch.dtype | None

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

    def configure_step(self, **options: Any) -> None:
        """Give the step other options."""
        ...

    def autocast_step(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> None:
        """Run the step's forward pass under autocast, and scale its gradients if `scaling` is given."""
        ...

    def compile_step(self, *, graphs: bool = False) -> None:
        """Compile the step's forward pass."""
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


@dataclass(frozen=True)
class Optimization:
    """The interface of one optimization, read from its file."""

    name: str
    sentence: str
    stage: Stage
    effect: Callable[[Workload | None], Effect]
    off: Value
    values: Any
    """The type of its values, for validation and the schema."""
    choose: Callable[[Job, Hardware, Workload | None], Choice]
    refuse: Callable[[Job, Hardware, Workload | None, Value], str | None]
    candidates: Callable[[Job, Hardware, Workload | None], list[Value]]
    apply: Callable[[AssembledRun, Value], None]
    effective: Callable[[AssembledRun], Value]
    environment: Callable[[Hardware, Value], dict[str, str]]
    lacks: Callable[[Job, Hardware], str | None]
    """What this machine or job lacks for it to apply; None if it applies."""
    preloaded: Callable[[], Value] | None
    """The effective value in a process that is already running; only for libraries that `environment` preloads."""
    redraws: bool
    """Whether it changes the random numbers of dropout, so that its steps can only be compared without dropout."""


def _constant(effect: Effect, workload: Workload | None) -> Effect:
    return effect


def _from(module: ModuleType) -> Optimization:
    return Optimization(
        name=module.__name__.rsplit(".", 1)[-1],
        sentence=(module.__doc__ or "").strip().splitlines()[0],
        stage=module.STAGE,
        effect=module.EFFECT if not isinstance(module.EFFECT, Effect) else partial(_constant, module.EFFECT),
        off=module.OFF,
        values=module.Values,
        choose=module.choose,
        refuse=module.refuse,
        candidates=module.candidates,
        apply=module.apply,
        effective=module.effective,
        environment=getattr(module, "environment", lambda hardware, value: {}),
        lacks=getattr(module, "lacks", lambda job, hardware: None),
        preloaded=getattr(module, "preloaded", None),
        redraws=getattr(module, "REDRAWS", False),
    )


def wanted(job: Job, name: str, choice: Choice) -> Value:
    """The value that the job requests under this name, else the choice."""
    asked: Value = job.optimize.get(name, "auto")
    return choice.value if asked == "auto" else asked


def off_values() -> dict[str, Value]:
    """Plain PyTorch: the value of each optimization that turns it off."""
    return {optimization.name: optimization.off for optimization in every()}


@cache
def every() -> tuple[Optimization, ...]:
    """All optimizations, ordered by (stage, name)."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found = [_from(importlib.import_module(f"{__name__}.{name}")) for name in names]
    return tuple(sorted(found, key=lambda o: (o.stage, o.name)))
