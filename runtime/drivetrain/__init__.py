"""Drivetrain: adapts a training job to the machine, and reports what was applied.

From Python: `drivetrain.train`, `drivetrain.prepare`, `drivetrain.facts_here`, `drivetrain.plan_for`,
`drivetrain.memory_for`, `drivetrain.Monitor`, and the errors that they raise; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain.system.version import VERSION

if TYPE_CHECKING:
    from drivetrain.api import facts_here as facts_here
    from drivetrain.api import memory_for as memory_for
    from drivetrain.api import plan_for as plan_for
    from drivetrain.errors import Busy as Busy
    from drivetrain.errors import CheckpointError as CheckpointError
    from drivetrain.errors import DataError as DataError
    from drivetrain.errors import DeviceError as DeviceError
    from drivetrain.errors import DrivetrainError as DrivetrainError
    from drivetrain.errors import NumericsError as NumericsError
    from drivetrain.errors import OutOfMemory as OutOfMemory
    from drivetrain.errors import SpecError as SpecError
    from drivetrain.errors import Stopped as Stopped
    from drivetrain.errors import StorageError as StorageError
    from drivetrain.errors import UserCodeError as UserCodeError
    from drivetrain.library.embedded_run import Result as Result
    from drivetrain.library.prepare import PreparedStep as PreparedStep
    from drivetrain.library.prepare import prepare as prepare
    from drivetrain.library.train import train as train
    from drivetrain.tracking.monitor import Monitor as Monitor
    from drivetrain.training.user_parts import StopTraining as StopTraining
    from drivetrain.training.user_parts import TrainingInfo as TrainingInfo

__version__ = VERSION
_HOMES = {
    "Busy": "errors",
    "CheckpointError": "errors",
    "DataError": "errors",
    "DeviceError": "errors",
    "DrivetrainError": "errors",
    "Monitor": "tracking.monitor",
    "NumericsError": "errors",
    "OutOfMemory": "errors",
    "PreparedStep": "library.prepare",
    "Result": "library.embedded_run",
    "SpecError": "errors",
    "StopTraining": "training.user_parts",
    "Stopped": "errors",
    "StorageError": "errors",
    "TrainingInfo": "training.user_parts",
    "UserCodeError": "errors",
    "facts_here": "api",
    "memory_for": "api",
    "plan_for": "api",
    "prepare": "library.prepare",
    "train": "library.train",
}
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from drivetrain.system.installation import INSTALL_TORCH

        raise ModuleNotFoundError(
            f"{__name__}.{name} needs torch, which `{INSTALL_TORCH}` installs here", name="torch"
        ) from None
