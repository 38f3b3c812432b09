"""Calm: blocks of steps in turn, and which pairs of them count.

On a shared machine others take CPUs away for a while. The kernel counts how long our threads were ready and had none;
pairs in which they waited are taken again, and the calmest count. What is kept is chosen by that wait alone, never by
the ratio.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 0.12
"""Of a block: short, so that it fits between what others do."""
CALM = 0.03
"""A block is calm if its threads waited for a CPU for no more than this share of its time."""
AGAIN = 5
"""At most so many times as many pairs as are wanted, and each in no more than so many times its time."""
FEWEST = 3
"""Pairs that are taken however long they need."""


@dataclass(frozen=True)
class Block:
    """Some steps of one arm."""

    steps: int
    seconds: float
    waited: float
    """Time that all its threads together waited for a CPU, as a share of its seconds."""


Steps = Callable[[int], Block]
Sides = tuple[Block, Block]


def block(step: float) -> int:
    """Steps of a block, if one takes `step` seconds."""
    return max(1, math.ceil(SECONDS / step))


def calmest(slow: Steps, fast: Steps, count: int, pairs: int) -> list[Sides]:
    """The calmest `pairs` pairs of blocks of `count` steps; which side begins changes from pair to pair."""
    found: list[Sides] = []
    end = time.monotonic() + AGAIN * pairs * 2 * SECONDS
    for round_ in range(AGAIN * pairs):
        first = (slow, fast) if round_ % 2 == 0 else (fast, slow)
        blocks = [side(count) for side in first]
        found.append((blocks[0], blocks[1]) if round_ % 2 == 0 else (blocks[1], blocks[0]))
        enough = sum(_waited(sides) <= CALM for sides in found) >= pairs
        if enough or (len(found) >= FEWEST and time.monotonic() > end):
            break
    return sorted(found, key=_waited)[:pairs]


def _waited(sides: Sides) -> float:
    return max(block.waited for block in sides)
