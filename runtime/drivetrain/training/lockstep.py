"""Keeps the ranks of a run in lockstep: they stop, retry a step or roll back together, so none waits forever.

A rank may get a signal or see a non-finite number while the others do not. If it raised that error at once, the others
would wait for its gradients. So it holds the error until the next all-gather, in which each rank sends its status, and
then all ranks raise the most severe error. Each step has such an all-gather before its gradients are used.
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


ERRORS_BY_SEVERITY: tuple[tuple[type[BaseException], str], ...] = (
    (ComputeAgain, "the step has to be computed again in {}"),
    (MemoryError, "out of memory in {}"),
    (Stopped, "max_time has passed in {}"),
    (Interrupted, "stopped by a signal to {}"),
    (Fp16Collapse, "the fp16 scaler has collapsed in {}"),
    (NotFinite, "numbers are not finite in {}"),
    (HalfUpdated, "out of memory in the middle of an update in {}"),
)
"""Errors that a rank may hold, with the message in the other ranks; the most severe is last. A rollback outranks a stop,
because a stop saves a checkpoint. Running out of memory is listed for a single process; several processes start again.
"""


class RankStatus(NamedTuple):
    """Status that each rank sends to all others, as numbers, so that one all-gather is enough."""

    severity: float
    """Position of its error in ERRORS_BY_SEVERITY, counted from 1; 0 without an error."""
    time_share: float
    """Used share of `train.within` by its clock."""
    sample_hash: float = 0.0
    """Hash of the sample ids of its micro-batches."""


class Lockstep:
    """The ranks that train together, and the error that this rank holds. A single process holds and raises in the same way."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.held_error: BaseException | None = None
        """Error of this rank that the others do not know yet."""
        self.last_held_error: BaseException | None = None
        """Error that this rank held in the last exchange; None if it held none."""
        self.measure_time_share: Callable[[], float] = lambda: 0.0
        """Function that returns the used share of `train.within` by this rank's clock."""
        self.time_share = 0.0
        """Used share of `train.within` by rank 0's clock in the last exchange, which all ranks act on."""

    def hold(self, error: BaseException) -> None:
        """Hold an error until the next exchange, unless this rank holds an earlier one."""
        self.held_error = self.held_error or error

    @contextlib.contextmanager
    def holding_errors(self) -> Iterator[None]:
        """Hold a stop or rollback that the block raises."""
        try:
            yield
        except (RollBack, Stopped, KeyboardInterrupt) as error:
            self.hold(error)

    @contextlib.contextmanager
    def raising_together(self) -> Iterator[None]:
        """Raise the most severe stop or rollback of the block in all ranks at its end.

        Raises:
            PeerError: if another process has ended.
        """
        with self.holding_errors():
            yield
        self.raise_together()

    def raise_together(self) -> None:
        """Exchange the errors of all ranks, and raise the most severe one in each rank; return if there is none."""
        statuses = [RankStatus(*row) for row in self.ranks.all_gather(self.make_status())]
        error = self.agree_on_error(statuses)
        if error is not None:
            raise error

    def make_status(self, sample_hash: float = 0.0) -> RankStatus:
        """Make the status that this rank sends to the others."""
        return RankStatus(self._find_severity(), self.measure_time_share(), sample_hash)

    def agree_on_error(self, statuses: Sequence[RankStatus]) -> BaseException | None:
        """Return the most severe error of all ranks, and take over rank 0's time share.

        In a tie it is the error of this rank itself. All ranks know its error now, so this rank no longer holds it.

        Args:
            statuses: result of an all-gather of `make_status`, by rank.
        """
        severities = [int(status.severity) for status in statuses]
        highest, local_severity = max(severities), self._find_severity()
        self.time_share = statuses[0].time_share
        self.last_held_error, self.held_error = self.held_error, None
        if highest == 0:
            return None
        if highest == local_severity:
            return self.last_held_error
        kind, message = ERRORS_BY_SEVERITY[highest - 1]
        return kind(message.format(f"process {severities.index(highest) + 1} of {len(statuses)}"))

    def _find_severity(self) -> int:
        """Find the severity of the held error; 0 without one."""
        if self.held_error is None:
            return 0
        error_type = MemoryError if torch_errors.is_out_of_memory(self.held_error) else type(self.held_error)
        if issubclass(error_type, KeyboardInterrupt):
            error_type = Interrupted  # Ctrl-C in a Python program, which has its own signal handlers
        kinds = [kind for kind, _ in ERRORS_BY_SEVERITY]
        return next(severity for severity, kind in enumerate(kinds, 1) if issubclass(error_type, kind))


def out_of_memory_error(ranks: Ranks, samples: int) -> RestartSmaller:
    """Build the error for one of several ranks that ran out of memory with `samples` samples at a time.

    The other ranks may already be summing its gradients, so no rank can try the step again.
    """
    description = f"memory ran out in process {ranks.rank + 1} of {ranks.world_size} with {samples} samples at a time"
    ranks.announce_end(description)
    return RestartSmaller(
        description,
        "fewer samples at a time, at the same train.batch_size",
        f"set optimize.micro_batch: {max(1, samples // 2)}, and run the same command again on all machines",
    )
