"""The optimizations: one file each. They are found by listing this folder; there is no registry.

The file name is the key under `optimize:`, the row in the plan, the line in the report and the test id. A file holds

    STAGE, EFFECT, OFF, Values                          EFFECT may be a function of the workload
    choose(job, hardware, workload) -> Choice           the default and its reason; workload may be None
    refuse(job, hardware, workload, value) -> str|None  why a requested value, other than OFF, is not possible
    effective(run) -> value                             the effective value, read back after assembly

and what of these it needs:

    apply(run, value) -> None                           with `effective`, the only part that touches torch
    candidates(job, hardware, workload) -> list         values that the tuner compares; else UNMEASURED may say why none are
    environment(hardware, value) -> dict                for a setting that must be made before the process starts
    read_preloaded() -> value                           if `environment` preloads a library
    GPU_ONLY = True                                     if it applies to GPUs only
    lacks(job, hardware) -> str|None                    the missing condition, in two or three words
    IN_LOOP = True                                      if it needs nothing but the network and its step, as in a loop of the user
    QUICK = True                                        has it measured in short runs, too
    REFUSES_OFF = True                                  if OFF can be impossible, too: `refuse` is then asked about it
    REDRAWS = True                                      if it changes the random numbers of dropout

Their types are in the folder `interface`. `run` is an AssembledRun, as which they see `drivetrain.training.run.Run`; with
IN_LOOP a NetworkRun.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations.interface.assembled_run import AssembledRun, NetworkRun
from drivetrain.optimizations.interface.choice import Choice, Effect, Stage, Value

__all__ = [
    "AssembledRun",
    "Choice",
    "Effect",
    "Hardware",
    "Job",
    "NetworkRun",
    "Optimization",
    "Stage",
    "Value",
    "Workload",
    "environment",
    "every",
    "list_process_settings",
    "off_values",
]


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
    apply_in_loop: Callable[[NetworkRun, Value], None] | None
    """The same for a loop of the user; None if it acts on data, or on how the optimizer is built."""
    effective: Callable[[AssembledRun], Value]
    environment: Callable[[Hardware, Value], dict[str, str]]
    lacks: Callable[[Job, Hardware], str | None]
    """Names the part that this machine or job lacks for it to apply; None if it applies."""
    read_preloaded: Callable[[], Value] | None
    """The effective value in a process that is already running; only for libraries that `environment` preloads."""
    redraws: bool
    """Whether it changes the random numbers of dropout, so that its steps can only be compared without dropout."""
    quick: bool
    """Whether it can gain so much in so few steps that runs too short for other measurements measure it, too."""


def _return_effect(effect: Effect, workload: Workload | None) -> Effect:
    return effect


def _lacks_gpu(job: Job, hardware: Hardware) -> str | None:
    return None if hardware.gpu else "no GPU"


def _apply_nothing(run: NetworkRun, value: Value) -> None:
    """Do nothing: the environment has already applied the value."""


def _make_candidates(module: ModuleType) -> Callable[[Job, Hardware, Workload | None], list[Value]]:
    """Make the function `candidates` of a module that names no values to measure."""

    def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
        return [module.choose(job, hardware, workload).value]

    reason = getattr(module, "UNMEASURED", "")
    # A page shows what every function says about itself.
    candidates.__doc__ = f"The choice alone, as it is not measured{': ' if reason else ''}{reason}."
    return candidates


def _allow_off(module: ModuleType) -> Callable[[Job, Hardware, Workload | None, Value], str | None]:
    @wraps(module.refuse)
    def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
        return None if value == module.OFF else module.refuse(job, hardware, workload, value)

    return refuse


def _read_module(module: ModuleType) -> Optimization:
    default_lacks = _lacks_gpu if getattr(module, "GPU_ONLY", False) else lambda job, hardware: None
    apply = getattr(module, "apply", _apply_nothing)
    return Optimization(
        name=module.__name__.rsplit(".", 1)[-1],
        sentence=(module.__doc__ or "").strip().partition("\n")[0],
        stage=module.STAGE,
        effect=module.EFFECT if not isinstance(module.EFFECT, Effect) else partial(_return_effect, module.EFFECT),
        off=module.OFF,
        values=module.Values,
        choose=module.choose,
        refuse=module.refuse if getattr(module, "REFUSES_OFF", False) else _allow_off(module),
        candidates=getattr(module, "candidates", None) or _make_candidates(module),
        apply=apply,
        apply_in_loop=apply if getattr(module, "IN_LOOP", False) else None,
        effective=module.effective,
        environment=getattr(module, "environment", lambda hardware, value: {}),
        lacks=getattr(module, "lacks", default_lacks),
        read_preloaded=getattr(module, "read_preloaded", None),
        redraws=getattr(module, "REDRAWS", False),
        quick=getattr(module, "QUICK", False),
    )


def pick_requested(job: Job, name: str, choice: Choice) -> Value:
    """Return the value that the job requests under this name, else the choice."""
    requested: Value = job.optimize.get(name, "auto")
    return choice.value if requested == "auto" else requested


def off_values() -> dict[str, Value]:
    """Return plain PyTorch: the value of each optimization that turns it off."""
    return {optimization.name: optimization.off for optimization in every()}


def list_process_settings() -> set[str]:
    """List the optimizations that are fixed when a process starts."""
    return {optimization.name for optimization in every() if optimization.stage is Stage.PROCESS}


def environment(hardware: Hardware, values: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables that must be set before a process starts for these values; preloads are joined."""
    merged: dict[str, str] = {}
    for optimization in every():
        if optimization.name in values:
            for key, value in optimization.environment(hardware, values[optimization.name]).items():
                merged[key] = f"{merged[key]}:{value}" if key == "LD_PRELOAD" and key in merged else value
    return merged


@cache
def every() -> tuple[Optimization, ...]:
    """List all optimizations, ordered by (stage, name)."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg)
    loaded = [_read_module(importlib.import_module(f"{__name__}.{name}")) for name in names]
    return tuple(sorted(loaded, key=lambda o: (o.stage, o.name)))
