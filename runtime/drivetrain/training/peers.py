"""Lets all processes stop, retry or roll back together when one of them has a problem, so that none waits for another.

One process may get a signal or see a non-finite number while the others do not. So each process reports its problem
with the loss of its step, before the gradients are used, and all processes raise the most serious problem. A problem
between two steps is reported in the next step, which all processes compute and drop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from drivetrain.distributed.ranks import ALONE, Ranks
from drivetrain.errors import RestartSmaller, Stopped
from drivetrain.system import torch_errors
from drivetrain.system.signals import Interrupted
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite, RollBack


class ComputeAgain(Exception):
    """The gradients of a step cannot be used, and the step must be computed again; no weight has changed."""


class HalfUpdated(RollBack):
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


class Peers:
    """The processes that train together, and this process's problem; a single process raises it at the same points."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.problem: BaseException | None = None
        """The problem of this process that the others do not know yet."""
        self.reported: BaseException | None = None
        """Value of `problem` in the last exchange."""
        self.measure_time_share: Callable[[], float] = lambda: 0.0
        """Function that returns the used share of `train.within`; all processes use rank 0's value."""
        self.time_share = 0.0
        """Rank 0's value of this share in the last exchange."""

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Keep a stop or rollback in the block as this process's problem until the next exchange, unless it has one."""
        try:
            yield
        except (RollBack, Stopped, KeyboardInterrupt) as problem:
            self.problem = self.problem or problem

    @contextlib.contextmanager
    def same_outcome(self) -> Iterator[None]:
        """Raise in all processes the most serious problem that any of them had in the block.

        Raises:
            PeerError: if another process has ended.
        """
        with self.catching():
            yield
        self.raise_gravest()

    def raise_gravest(self) -> None:
        """Exchange problems, and raise the most serious one in all processes; return if there is no problem."""
        gravest = self.choose_gravest(self.ranks.all_gather(self.notes()))
        if gravest is not None:
            raise gravest

    def notes(self) -> list[float]:
        """Return the numbers that this process sends to the others in an exchange."""
        return [self.gravity, self.measure_time_share()]

    def choose_gravest(self, rows: Sequence[Sequence[float]]) -> BaseException | None:
        """Choose the most serious problem after an exchange, this process's own in a tie; None if there is no problem.

        Args:
            rows: notes of each process, by rank.
        """
        gravities, self.time_share = [int(row[0]) for row in rows], rows[0][1]
        gravest, is_own = max(gravities), max(gravities) == self.gravity
        self.reported, self.problem = self.problem, None
        if is_own:
            return self.reported
        kind, text = PROBLEM_KINDS[gravest - 1]
        return kind(text.format(f"process {gravities.index(gravest) + 1} of {len(gravities)}"))

    @property
    def gravity(self) -> int:
        """Position of this process's problem in PROBLEM_KINDS, from 1; 0 without a problem."""
        if self.problem is None:
            return 0
        kind = MemoryError if torch_errors.is_out_of_memory(self.problem) else type(self.problem)
        if issubclass(kind, KeyboardInterrupt):
            kind = Interrupted  # Ctrl-C in a Python program, which has its own signal handlers
        return next(
            position for position, (problem_kind, _) in enumerate(PROBLEM_KINDS, 1) if issubclass(kind, problem_kind)
        )


def out_of_memory_error(ranks: Ranks, samples: int) -> RestartSmaller:
    """Build the error for one of several processes that ran out of memory with `samples` samples at a time.

    The other processes may already be summing its gradients, so no process can try the step again.
    """
    description = f"memory ran out in process {ranks.number + 1} of {ranks.count} with {samples} samples at a time"
    ranks.announce_end(description)
    return RestartSmaller(
        description,
        "fewer samples at a time, at the same train.batch_size",
        f"set optimize.micro_batch: {max(1, samples // 2)}, and run the same command again on all machines",
    )
