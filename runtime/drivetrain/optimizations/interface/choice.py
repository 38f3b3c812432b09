"""Properties of every optimization: its values, its stage, its effect, and its default with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

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
    """Change that an optimization may make: none, the rounding, or the training itself."""

    EXACT = "exact"
    ROUNDING = "rounding"
    TRAINING = "training"


@dataclass(frozen=True)
class Choice:
    """A value and its reason."""

    value: Value
    reason: str
