"""Arrays in memory, of which processes share one copy."""

from __future__ import annotations

from typing import Any

from drivetrain.data import one_copy


class MemoryArrays:
    """Arrays in memory."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def change_arrays(self, change: one_copy.Change) -> None:
        self.arrays = tuple(map(change, self.arrays))
