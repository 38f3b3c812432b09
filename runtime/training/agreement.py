"""Agreement among processes on problems: all of them stop, retry or roll back together, so none waits for another.

One process may get a signal, run out of memory, or see a non-finite number, while the others do not. So each reports its
problem beside the gradients that it sends, and before they are used. The most serious one counts for all, and all raise the
same error. What is met between two steps is reported in the next: that process sends zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.distributed.ranks import Ranks
from runtime.errors import RestartSmaller, Stopped
from runtime.system import torch_errors
from runtime.system.signals import Interrupted
from runtime.training.nonfinite import Fp16Collapse, NotFinite


class ComputeAgain(Exception):
    """The gradients of a step cannot be used, and the next try will give others; no weight has changed."""


class HalfUpdated(Exception):
    """Memory ran out in the middle of an update: some weights are new and some old, so the run must go back."""


KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (ComputeAgain, "the step has to be computed again in {}"),
    (MemoryError, "out of memory in {}"),
    (Stopped, "max_time has passed in {}"),
    (Interrupted, "stopped by a signal to {}"),
    (Fp16Collapse, "the fp16 scaler has collapsed in {}"),
    (NotFinite, "numbers are not finite in {}"),
    (HalfUpdated, "out of memory in the middle of an update in {}"),
)
"""Problems and how other processes report them, most serious last. A rollback outranks a stop, because a stop saves
a checkpoint.
"""


def agreed(ranks: Ranks, trouble: BaseException | None = None) -> BaseException | None:
    """The problem that counts for all processes: this one's own if none is more serious, else another's; None if none.

    Raises:
        PeerError: if another process is gone.
    """
    return gravest(trouble, [int(row[0]) for row in ranks.all_gather([gravity(trouble)])])


def gravest(trouble: BaseException | None, met: Sequence[int]) -> BaseException | None:
    """The problem that counts for all processes.

    Args:
        trouble: this process's own.
        met: the gravity of those of all processes, by rank.
    """
    worst = max(met)
    if worst == gravity(trouble):
        return trouble
    kind, words = KINDS[worst - 1]
    return kind(words.format(f"process {met.index(worst) + 1} of {len(met)}"))


def settle(ranks: Ranks, trouble: BaseException | None = None) -> None:
    """Return if no process has a problem; else raise what `agreed` returns."""
    found = agreed(ranks, trouble)
    if found is not None:
        raise found


def gravity(trouble: BaseException | None) -> int:
    """How serious a problem is; 0 for none."""
    if trouble is None:
        return 0
    kind = MemoryError if torch_errors.is_out_of_memory(trouble) else type(trouble)
    if issubclass(kind, KeyboardInterrupt):
        kind = Interrupted  # Ctrl-C in a Python program, whose handlers are not ours
    return next(place for place, (known, _) in enumerate(KINDS, 1) if issubclass(kind, known))


def out_of_memory(ranks: Ranks, tried: int) -> RestartSmaller:
    """The error that ends a process which ran out of memory while the others wait for its part of the weights."""
    who = f"memory ran out in process {ranks.number + 1} of {ranks.count} with {tried} samples at a time"
    if ranks.heartbeat:
        ranks.heartbeat.give_up(f"{who}, and the weights are divided among all processes")
    return RestartSmaller(
        f"{who}; the weights are divided, so the others cannot go on",
        "fewer samples at a time, at the same train.batch_size",
        f"set optimize.micro_batch: {max(1, tried // 2)}, and run the same command again on all machines",
    )


def least(ranks: Ranks, number: int | None) -> int | None:
    """The smallest number among all processes; None if no process has one."""
    given = [int(row[0]) for row in ranks.all_gather([number or 0])]
    return min(filter(None, given), default=None)
