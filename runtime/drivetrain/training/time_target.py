"""The position of a run, and its time: keeps a run with `train.within` in its time, whose length follows from the speed so far,
after an epoch or within a long one.

The schedule is stretched or shortened with it, so that it ends with the run. The changes are part of a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.system.run_files import RUN_LENGTH_FILE, RunFiles
from drivetrain.system.run_records import read_mapping, read_number
from drivetrain.tracking.live.time_left import format_clock_time


@dataclass
class Counters:
    """The position of the run."""

    epoch: int = 0
    """The current epoch, from 0."""
    batch: int = 0
    """Batches of this epoch that are done."""
    step: int = 0
    """Optimizer steps that are done."""
    samples: int = 0
    """Samples processed."""
    solved: bool = False
    """Whether the heads were solved in place of the first epochs."""
    seconds: float = 0.0
    """Training time of earlier attempts."""
    length_changes: list[tuple[int, int]] = field(default_factory=list)
    """Of `train.within`: steps, and the total number of steps from there on."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take the values of a checkpoint; this object stays the one that the step and the batches report with."""
        restored = Counters(**saved)
        restored.length_changes = [(step, total) for step, total in restored.length_changes]
        vars(self).update(vars(restored))


EARLY, LATE = 0.91, 0.99
"""The length changes if the run would end before or after these shares of its time."""
MAX_EPOCHS = 100
"""A small data set would be repeated thousands of times within an hour, and learned by heart."""
MIN_WINDOW_SHARE = 0.1
"""Share of the time over which the speed is measured, at least."""
MIN_FAST_SHARE = 0.02
"""The same for steps that are a tenth of all."""
MIN_CHANGED_SHARE = 0.03
"""Smallest change, as a share of all steps."""


class TimeTarget:
    """The seconds that a run may train, and when its last epochs ended.

    Args:
        seconds: of training, of all attempts together.
        evaluation_seconds: of an evaluation, as measured before the run.
    """

    def __init__(self, seconds: float, evaluation_seconds: float = 0.0) -> None:
        self.seconds, self.evaluation_seconds = seconds, evaluation_seconds
        self.window_start: tuple[float, int] | None = None
        """Seconds of this attempt, and step, at which the present window within an epoch began."""
        self.epoch_ends: deque[tuple[float, int]] = deque()
        """Seconds of this attempt, and steps, at the end of recent epochs."""

    def restart(self) -> None:
        """Measure the speed anew after a rollback: the steps of the epochs so far are ahead of the run again."""
        self.epoch_ends.clear()
        self.window_start = None

    def change_within_epoch(self, counters: Counters, now: float, total_steps: int, steps_per_epoch: int) -> str | None:
        """As `change_length`, after a step: an epoch may take most of the time, and a first measurement may have been slow."""
        step = counters.step
        if self.window_start is None:
            self.window_start = (now, step)
        begin, first_step = self.window_start
        time_share, step_share = (now - begin) / self.seconds, (step - first_step) / total_steps
        # Steps that are much faster than expected would all be trained before a tenth of the time is over.
        is_long = time_share >= MIN_WINDOW_SHARE or min(time_share / MIN_FAST_SHARE, step_share / MIN_WINDOW_SHARE) >= 1
        if not is_long or step == first_step or step >= total_steps:
            return None
        self.window_start = (now, step)
        seconds_per_step = (now - begin) / (step - first_step) + self.evaluation_seconds / steps_per_epoch
        return self._fit_length(counters, now, total_steps, steps_per_epoch, seconds_per_step)

    def change_length(self, counters: Counters, now: float, total_steps: int, steps_per_epoch: int) -> str | None:
        """Change the number of steps after an epoch, if the run would end too early or too late; returns a line on it.

        Args:
            counters: the position of the run; a change is added to them.
            now: seconds of this attempt.
            total_steps: of the run, until now.
            steps_per_epoch: of the run.
        """
        step, self.window_start = counters.step, None
        self.epoch_ends.append((now, step))
        while len(self.epoch_ends) > 2 and now - self.epoch_ends[1][0] >= MIN_WINDOW_SHARE * self.seconds:
            self.epoch_ends.popleft()
        begin, first_step = self.epoch_ends[0]
        if now - begin < MIN_WINDOW_SHARE * self.seconds or step >= total_steps:
            return None
        # With the evaluations in it.
        return self._fit_length(counters, now, total_steps, steps_per_epoch, (now - begin) / (step - first_step))

    def _fit_length(
        self, counters: Counters, now: float, total_steps: int, steps_per_epoch: int, seconds_per_step: float
    ) -> str | None:
        step = counters.step
        seconds_left = self.seconds - now - counters.seconds
        predicted_end = self.seconds - seconds_left + (total_steps - step) * seconds_per_step
        if EARLY * self.seconds <= predicted_end <= LATE * self.seconds:
            return None
        seconds_to_use = seconds_left - (1 - (EARLY + LATE) / 2) * self.seconds
        new_total = min(step + max(1, int(seconds_to_use / seconds_per_step)), MAX_EPOCHS * steps_per_epoch)
        if abs(new_total - total_steps) < MIN_CHANGED_SHARE * total_steps:
            return None
        counters.length_changes.append((step, new_total))
        return (
            f"{new_total:,} steps instead of {total_steps:,}, with the schedule: a step takes {seconds_per_step * 1000:.3g} ms "
            f"with its share of the evaluations, and {format_clock_time(max(0.0, seconds_left))} are left"
        )


def read_target(folder: Path) -> TimeTarget | None:
    """The time of a run, which its supervisor has stored; None without `train.within`."""
    stored = RunFiles(folder).read_object(RUN_LENGTH_FILE)
    seconds = read_number(stored, "train_seconds")
    evaluation_seconds = read_number(read_mapping(stored, "times"), "evaluation") or 0.0
    return None if seconds is None else TimeTarget(seconds, evaluation_seconds)


def find_scheduled_step(step: int, total_steps: int, changes: Sequence[tuple[int, int]]) -> float:
    """The step of the schedule that belongs to a step of a run whose length has changed.

    Args:
        step: of the run.
        total_steps: of the schedule.
        changes: of the length, as in `Counters`; from each step on, what is left of the schedule is divided among the steps that are left.
    """
    scheduled, since, total = 0.0, 0, total_steps
    for changed_at, new_total in changes:
        if changed_at > step:
            break
        scheduled += (changed_at - since) * (total_steps - scheduled) / (total - since)
        since, total = changed_at, new_total
    return scheduled + (step - since) * (total_steps - scheduled) / (total - since)
