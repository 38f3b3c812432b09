"""Low-noise timing: blocks of steps in turn, and the choice of the pairs that count.

On a shared machine others take CPUs away for a while. The kernel counts how long our threads were ready without a CPU;
pairs in which they waited are repeated, and those with the least waiting count. Pairs are selected by the waiting time
only, never by their ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.tuning.paired_timing import BLOCK, in_turn

CALM = 0.03
"""A block is low-noise if its threads waited for a CPU for at most this share of its time."""
AGAIN = 5
"""Limits the repetitions: to so many times the requested pairs, and to so many times their time."""
FEWEST = 3
"""Pairs that are taken however long they take."""


@dataclass(frozen=True)
class Block:
    """Some steps of one variant."""

    steps: int
    seconds: float
    waited: float
    """Time that all its threads together waited for a CPU, relative to its seconds."""


Steps = Callable[[int], Block]
Sides = tuple[Block, Block]


def calmest(slow: Steps, fast: Steps, count: int, pairs: int) -> list[Sides]:
    """The `pairs` pairs of blocks of `count` steps with the least noise; the variants take turns in going first."""
    found: list[Sides] = []
    end = time.monotonic() + AGAIN * pairs * 2 * BLOCK
    for sides in in_turn(slow, fast, count, AGAIN * pairs):
        found.append(sides)
        enough = sum(_waited(each) <= CALM for each in found) >= pairs
        if enough or (len(found) >= FEWEST and time.monotonic() > end):
            break
    return sorted(found, key=_waited)[:pairs]


def _waited(sides: Sides) -> float:
    return max(block.waited for block in sides)
