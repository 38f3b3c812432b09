"""The optimizations: one file each; this folder is listed, not registered.

The file name is the key under `optimize:`, the row in the plan, the line in the report and the test id. A file holds

    STAGE, EFFECT, OFF, Values                          EFFECT may be a function of the workload
    choose(job, hardware, workload) -> Choice           what we would do, with the reason; workload may be None
    refuse(job, hardware, workload, value) -> str|None  why a wanted value cannot be had
    candidates(job, hardware, workload) -> list         values worth measuring, if contested
    apply(run, value) -> None                           with `effective`, the only part that touches torch
    effective(run) -> value                             what is really in force, read back after assembly

and, for a setting that must stand before the process starts, environment(hardware, value) -> dict, with
preloaded() -> value where that names a library; for one that works on some machines or jobs only,
lacks(job, hardware) -> str|None: what is missing here, in two or three words.

`run` is an AssembledRun: what of `runtime.training.run.Run` an optimization may read and change.
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
    import torch
    from torch import nn

    from runtime.data.dataset import Batch, Dataset
    from runtime.data.loader.batches import Batches
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

Value = bool | int | float | str


class Stage(IntEnum):
    """When an optimization is applied; the order of the members is the order of application."""

    PROCESS = 0
    LOADER = 1
    MODEL = 2
    OPTIMIZER = 3
    STEP = 4
    COMPILE = 5


class Effect(StrEnum):
    """What an optimization may change: nothing, the rounding, or what is learned."""

    EXACT = "exact"
    ROUNDING = "rounding"
    TRAINING = "training"


@dataclass(frozen=True)
class Choice:
    """A value and why."""

    value: Value
    reason: str


class AssembledPlan(Protocol):
    """What an optimization may ask of the plan, which is made from optimizations and so stands above them."""

    def value(self, name: str) -> Value:
        """The value decided for one optimization."""
        ...


class AssembledEvents(Protocol):
    """Where an optimization says what it could not do."""

    def add(self, kind: str, text: str, /) -> None:
        """One event of the run."""
        ...


class AssembledStep(Protocol):
    """What an optimization may change of the training step."""

    micro_batch: int | None
    cut: Callable[[Batch, int], Iterable[Batch]]
    memory_format: torch.memory_format
    plain: Callable[..., Any]
    forward: Callable[..., Any]

    @property
    def dtype(self) -> torch.dtype | None:
        """What the forward pass computes in; None for fp32."""
        ...

    @property
    def graphs(self) -> bool:
        """Whether compiled kernels are recorded and replayed."""
        ...

    def autocast(self, dtype: torch.dtype, scaler: Any = None) -> None:
        """Compute the forward pass in a shorter format."""
        ...

    def compile(self, *, graphs: bool = False) -> None:
        """Compile the forward pass."""
        ...


class AssembledRun(Protocol):
    """What an optimization may use of a run; training stands above this folder, and checks that its Run is one."""

    dataset: Dataset
    replaced: Dataset | None
    prefix_dtype: torch.dtype | None

    @property
    def job(self) -> Job:
        """What the user asked for."""
        ...

    @property
    def hardware(self) -> Hardware:
        """What may be used of this machine."""
        ...

    @property
    def plan(self) -> AssembledPlan:
        """All decisions."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the network is."""
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

    @property
    def events(self) -> AssembledEvents:
        """The events of the run."""
        ...


@dataclass(frozen=True)
class Optimization:
    """One file of this folder, checked."""

    name: str
    sentence: str
    stage: Stage
    effect: Callable[[Workload | None], Effect]
    off: Value
    values: Any
    """The type of the values, for validation and for the schema."""
    choose: Callable[[Job, Hardware, Workload | None], Choice]
    refuse: Callable[[Job, Hardware, Workload | None, Value], str | None]
    candidates: Callable[[Job, Hardware, Workload | None], list[Value]]
    apply: Callable[[AssembledRun, Value], None]
    effective: Callable[[AssembledRun], Value]
    environment: Callable[[Hardware, Value], dict[str, str]]
    lacks: Callable[[Job, Hardware], str | None]
    """What this machine or job lacks that it could work on; None where there is something to decide."""
    preloaded: Callable[[], Value] | None
    """What is in force in a process that runs already; only where `environment` preloads a library."""
    redraws: bool
    """Whether dropout draws other numbers with it, so that steps can only be compared without dropout."""


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
    """What the job asks for under this name, or else the choice."""
    asked: Value = job.optimize.get(name, "auto")
    return choice.value if asked == "auto" else asked


@cache
def every() -> tuple[Optimization, ...]:
    """All optimizations, in the order (stage, name)."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found = [_from(importlib.import_module(f"{__name__}.{name}")) for name in names]
    return tuple(sorted(found, key=lambda o: (o.stage, o.name)))
