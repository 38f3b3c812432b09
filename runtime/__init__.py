"""Drivetrain: adapts a training job to the machine, and reports what was applied.

From Python: `runtime.train`, `runtime.prepare`, `runtime.facts_here`, `runtime.plan_for`, `runtime.memory_for`,
`runtime.Monitor`; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.system.version import VERSION

if TYPE_CHECKING:
    from runtime.api import facts_here as facts_here
    from runtime.api import memory_for as memory_for
    from runtime.api import plan_for as plan_for
    from runtime.supervisor.embedded import Result as Result
    from runtime.supervisor.embedded import train as train
    from runtime.supervisor.prepare import prepare as prepare
    from runtime.tracking.monitor import Monitor as Monitor
    from runtime.training.callbacks import StopTraining as StopTraining
    from runtime.training.callbacks import TrainingInfo as TrainingInfo

__version__ = VERSION

_HOMES = {
    "train": "supervisor.embedded",
    "Result": "supervisor.embedded",
    "facts_here": "api",
    "plan_for": "api",
    "memory_for": "api",
    "prepare": "supervisor.prepare",
    "Monitor": "tracking.monitor",
    "StopTraining": "training.callbacks",
    "TrainingInfo": "training.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from runtime.system.installation import SETUP

        raise ModuleNotFoundError(
            f"{__name__}.{name} needs torch, which `{SETUP}` installs here", name="torch"
        ) from None
