"""Lets a ReLU overwrite its input: one tensor less is stored for each, with the same bits."""

from __future__ import annotations

from typing import Any

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

STAGE = Stage.MODEL
EFFECT = Effect.EXACT
OFF = False
UNMEASURED = "it is used on request only"
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Off, because it is not identity what else reads the input of a ReLU."""
    return Choice(False, "safe only if nothing else reads the input; used on request")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Without a ReLU."""
    if value and workload is not None and not workload.has("ReLU"):
        return "the network has no ReLU, so the setting would do nothing"
    return None


def apply(run: AssembledRun, value: Value) -> None:
    """Make every ReLU overwrite its input."""
    for module in _all(run):
        module.inplace = True


def effective(run: AssembledRun) -> Value:
    """Whether all of them overwrite their input."""
    modules = _all(run)
    return bool(modules) and all(module.inplace for module in modules)


def _all(run: AssembledRun) -> list[Any]:
    import torch

    return [module for module in run.model.modules() if isinstance(module, torch.nn.ReLU)]
