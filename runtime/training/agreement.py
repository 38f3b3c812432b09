"""Agreement: what ends or repeats a piece of work is decided by all processes together, so that none waits for another.

One process may get a signal, run out of memory, or see a number that is not finite, while the others do not. So before
they exchange numbers, each says what it has met. The gravest of it holds for all, and all raise the same.
"""

from __future__ import annotations

from pathlib import Path

from runtime.distributed.ranks import Ranks
from runtime.errors import Stopped
from runtime.system import torch_errors
from runtime.system.signals import Interrupted
from runtime.system.torch_errors import HalfUpdated
from runtime.training.checkpoints import checkpoint
from runtime.training.nonfinite import Fp16Collapse, NotFinite

KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (MemoryError, "memory ran out in {}"),
    (Stopped, "max_time is spent in {}"),
    (Interrupted, "stopped by a signal to {}"),
    (Fp16Collapse, "the fp16 scaler has collapsed in {}"),
    (NotFinite, "numbers are not finite in {}"),
    (HalfUpdated, "memory ran out in the middle of an update in {}"),
)
"""What can be met, and what the others say of it; the gravest last. Who must go back cannot stop first: a stop saves."""


def agreed(ranks: Ranks, trouble: BaseException | None = None) -> BaseException | None:
    """What all processes go by, given what this one has met: its own if none is graver, else what another has met.

    Raises:
        PeerError: if another process is gone.
    """
    if ranks.count == 1:
        return trouble
    own = _gravity(trouble)
    met = [int(row[0]) for row in ranks.everyone([own])]
    gravest = max(met)
    if gravest == own:
        return trouble
    kind, words = KINDS[gravest - 1]
    return kind(words.format(f"process {met.index(gravest) + 1} of {ranks.count}"))


def settle(ranks: Ranks, trouble: BaseException | None = None) -> None:
    """Go on if no process has met anything; else raise what `agreed` finds."""
    found = agreed(ranks, trouble)
    if found is not None:
        raise found


def _gravity(trouble: BaseException | None) -> int:
    if trouble is None:
        return 0
    if torch_errors.is_exhausted(trouble):
        return 1
    return next(place for place, (kind, _) in enumerate(KINDS, 1) if isinstance(trouble, kind))


def latest(ranks: Ranks, folder: Path) -> tuple[checkpoint.Loaded | None, list[str]]:
    """The newest checkpoint that verifies, as `checkpoint.latest` finds it: the leader looks, the others read the same.

    Raises:
        CheckpointError: if there are checkpoints and none verifies, or this process cannot read the leader's.
    """
    loaded, passed = checkpoint.latest(folder) if ranks.leads else (None, [])
    step = int(ranks.leaders([loaded.state["counters"]["step"] if loaded else -1])[0])
    if not ranks.leads and step >= 0:
        loaded = checkpoint.load(folder / f"step-{step}")
    return loaded, passed


def least(ranks: Ranks, number: int | None) -> int | None:
    """The smallest of the numbers that the processes give; None where none gives one."""
    given = [int(row[0]) for row in ranks.everyone([number or 0])]
    return min(filter(None, given), default=None)
