"""Drivetrain: fits a training job to the machine it lands on, and proves it.

From Python: `runtime.train`, `runtime.facts_here`, `runtime.plan_for`, `runtime.memory_for`, `runtime.Monitor`; each is
loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.alone import facts_here as facts_here
    from runtime.alone import memory_for as memory_for
    from runtime.alone import plan_for as plan_for
    from runtime.library import Result as Result
    from runtime.library import train as train
    from runtime.monitor import Monitor as Monitor

__version__ = "0.1.0"

_HOMES = {
    "train": "library", "Result": "library", "facts_here": "alone", "plan_for": "alone", "memory_for": "alone",
    "Monitor": "monitor",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
