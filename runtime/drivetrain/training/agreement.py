"""Agreement among processes on problems: all of them stop, retry or roll back together, so none waits for another.

One process may get a signal, run out of memory, or see a non-finite number, while the others do not. So each reports its
problem beside the gradients that it sends, and before they are used. The most serious one counts for all, and all raise the
same error. A problem between two steps is reported in the next step, for which that process sends zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import RestartSmaller, Stopped
from drivetrain.system import torch_errors
from drivetrain.system.signals import Interrupted
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite


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


def agree_on(ranks: Ranks, problem: BaseException | None = None) -> BaseException | None:
    """The problem that counts for all processes: this one's own if none is more serious, else another's; None if none.

    Raises:
        PeerError: if another process is gone.
    """
    return gravest(problem, [int(row[0]) for row in ranks.all_gather([gravity(problem)])])


def gravest(problem: BaseException | None, gravities: Sequence[int]) -> BaseException | None:
    """The problem that counts for all processes.

    Args:
        problem: this process's own.
        gravities: those of the problems of all processes, by rank.
    """
    worst = max(gravities)
    if worst == gravity(problem):
        return problem
    kind, text = KINDS[worst - 1]
    return kind(text.format(f"process {gravities.index(worst) + 1} of {len(gravities)}"))


def settle(ranks: Ranks, problem: BaseException | None = None) -> None:
    """Return if no process has a problem; else raise what `agree_on` returns."""
    gravest_problem = agree_on(ranks, problem)
    if gravest_problem is not None:
        raise gravest_problem


def gravity(problem: BaseException | None) -> int:
    """The position of a problem in KINDS, from 1; 0 for none."""
    if problem is None:
        return 0
    kind = MemoryError if torch_errors.is_out_of_memory(problem) else type(problem)
    if issubclass(kind, KeyboardInterrupt):
        kind = Interrupted  # Ctrl-C in a Python program, whose handlers are not ours
    return next(rank for rank, (kinds, _) in enumerate(KINDS, 1) if issubclass(kind, kinds))


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
    numbers = [int(row[0]) for row in ranks.all_gather([number or 0])]
    return min(filter(None, numbers), default=None)
