"""Lets all processes stop, retry or roll back together when one of them has a problem, so that none waits for another.

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
    """The gradients of a step cannot be used, and the same step has to be computed again; no weight has changed."""


class HalfUpdated(Exception):
    """Memory ran out in the middle of an update: some weights are new and some old, so the run must go back."""


PROBLEM_KINDS: tuple[tuple[type[BaseException], str], ...] = (
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
    """Exchange problems; returns the most serious one of all processes, None if there is none.

    Raises:
        PeerError: if another process is gone.
    """
    return choose_gravest(problem, [int(row[0]) for row in ranks.all_gather([rate_gravity(problem)])])


def choose_gravest(problem: BaseException | None, gravities: Sequence[int]) -> BaseException | None:
    """The most serious problem of all processes: this one's own if none is more serious; None if there is none.

    Args:
        problem: of this process.
        gravities: `rate_gravity` of the problem of each process, by rank.
    """
    gravest = max(gravities)
    if gravest == rate_gravity(problem):
        return problem
    kind, text = PROBLEM_KINDS[gravest - 1]
    return kind(text.format(f"process {gravities.index(gravest) + 1} of {len(gravities)}"))


def raise_gravest(ranks: Ranks, problem: BaseException | None = None) -> None:
    """Raise what `agree_on` returns, in all processes; return if none has a problem."""
    gravest = agree_on(ranks, problem)
    if gravest is not None:
        raise gravest


def rate_gravity(problem: BaseException | None) -> int:
    """The position of a problem in KINDS, from 1; 0 for none."""
    if problem is None:
        return 0
    kind = MemoryError if torch_errors.is_out_of_memory(problem) else type(problem)
    if issubclass(kind, KeyboardInterrupt):
        kind = Interrupted  # Ctrl-C in a Python program, whose handlers are not ours
    return next(gravity for gravity, (problem_kind, _) in enumerate(PROBLEM_KINDS, 1) if issubclass(kind, problem_kind))


def out_of_memory_error(ranks: Ranks, samples: int) -> RestartSmaller:
    """The error of a process with a part of the weights that ran out of memory with so many `samples` at a time."""
    what_happened = f"memory ran out in process {ranks.number + 1} of {ranks.count} with {samples} samples at a time"
    if ranks.heartbeat:
        ranks.heartbeat.give_up(f"{what_happened}, and the weights are divided among all processes")
    return RestartSmaller(
        f"{what_happened}; the weights are divided, so the others cannot go on",
        "fewer samples at a time, at the same train.batch_size",
        f"set optimize.micro_batch: {max(1, samples // 2)}, and run the same command again on all machines",
    )


def find_smallest(ranks: Ranks, number: int | None) -> int | None:
    """The smallest number among all processes; None if no process has one."""
    numbers = [int(row[0]) for row in ranks.all_gather([number or 0])]
    return min(filter(None, numbers), default=None)
