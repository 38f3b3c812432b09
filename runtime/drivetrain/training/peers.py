"""Lets all processes stop, retry or roll back together when one of them has a problem, so that none waits forever.

One process may get a signal or see a non-finite number while the others do not. So each process reports its problem
with the loss of its step, before the gradients are used, and all processes raise the most serious problem. A problem
between two steps is reported in the next step, which all processes compute and drop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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
"""Problems and how other processes report them, most serious last. A rollback outranks a stop, because a stop saves a
checkpoint. Running out of memory is listed for a process that trains alone; several processes start again instead.
"""


class StepNote(NamedTuple):
    """Note that each process sends to all others with the loss of a step: numbers, which one collective can gather."""

    severity: float
    """Position of its problem in PROBLEM_KINDS, counted from 1; 0 without a problem."""
    time_share: float
    """Used share of `train.within`, as measured by this process; part of the note to save another collective."""
    sample_hash: float = 0.0
    """Hash of the sample ids that it has computed."""


class Peers:
    """The processes that train together, and this process's problem; a single process raises it at the same points."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.problem: BaseException | None = None
        """The problem of this process that the others do not know yet."""
        self.last_exchanged: BaseException | None = None
        """Value of `problem` in the last exchange; with it, `StepRecords` recognizes a rollback of this process itself."""
        self.measure_time_share: Callable[[], float] = lambda: 0.0
        """Function that returns the used share of `train.within`; all processes use rank 0's value."""
        self.time_share = 0.0
        """Rank 0's value of this share in the last exchange."""

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Catch a stop or rollback that the block raises, and keep it for the next exchange; see `keep`."""
        try:
            yield
        except (RollBack, Stopped, KeyboardInterrupt) as problem:
            self.keep(problem)

    def keep(self, problem: BaseException) -> None:
        """Keep a problem until the next exchange, unless there is an earlier one."""
        self.problem = self.problem or problem

    @contextlib.contextmanager
    def raising_together(self) -> Iterator[None]:
        """Raise in all processes the most serious problem that any of them had in the block.

        Raises:
            PeerError: if another process has ended.
        """
        with self.catching():
            yield
        self.exchange_problems()

    def exchange_problems(self) -> None:
        """Exchange problems, and raise the most serious one in all processes; return if there is no problem."""
        notes = [StepNote(*row) for row in self.ranks.all_gather(self.write_note())]
        problem = self.finish_exchange(notes)
        if problem is not None:
            raise problem

    def refresh_time_share(self) -> None:
        """Measure the used share of `train.within` without an exchange, in a process that trains alone."""
        self.time_share = self.measure_time_share()

    def write_note(self, sample_hash: float = 0.0) -> StepNote:
        """Write the note that this process sends to the others in an exchange."""
        return StepNote(self.severity, self.measure_time_share(), sample_hash)

    def finish_exchange(self, notes: Sequence[StepNote]) -> BaseException | None:
        """Take over rank 0's time share, and return the most serious problem; None if there is none.

        In a tie, this process's own problem is returned. All processes know it now, so it is no longer kept.
        """
        severities = [int(note.severity) for note in notes]
        highest, local_severity = max(severities), self.severity
        self.time_share = notes[0].time_share
        self.last_exchanged, self.problem = self.problem, None
        if highest == 0:
            return None
        if highest == local_severity:
            return self.last_exchanged
        kind, text = PROBLEM_KINDS[highest - 1]
        return kind(text.format(f"process {severities.index(highest) + 1} of {len(notes)}"))

    @property
    def severity(self) -> int:
        """Position of this process's problem in PROBLEM_KINDS, counted from 1; 0 without a problem."""
        if self.problem is None:
            return 0
        kind = MemoryError if torch_errors.is_out_of_memory(self.problem) else type(self.problem)
        if issubclass(kind, KeyboardInterrupt):
            kind = Interrupted  # Ctrl-C in a Python program, which has its own signal handlers
        for position, (problem_kind, _) in enumerate(PROBLEM_KINDS, 1):
            if issubclass(kind, problem_kind):
                return position
        raise AssertionError(f"{kind.__name__} is not in PROBLEM_KINDS")


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
