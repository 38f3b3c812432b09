"""Counts the position of a run, and measures the used share of its time with `train.within`.

The schedule of such a run is a function of this share, and the training ends when it reaches 1.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.job import Job
from drivetrain.job.values import parse_duration


@dataclass
class Counters:
    """The position of the run."""

    epoch: int = 0
    """Current epoch, from 0."""
    batch: int = 0
    """Finished batches of this epoch."""
    step: int = 0
    """Finished optimizer steps."""
    samples: int = 0
    """Processed samples."""
    solved: bool = False
    """Whether the heads were solved instead of the first epochs."""
    seconds: float = 0.0
    """Training time of earlier attempts."""

    def end_step(self, samples: int) -> None:
        """Count a step on `samples` samples, also if its batch was skipped."""
        self.step += 1
        self.batch += 1
        self.samples += samples

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Set the values from a checkpoint in place, because step and batches hold this object."""
        vars(self).update(vars(Counters(**saved)))


COMMAND_BEGAN = "DRIVETRAIN_COMMAND_BEGAN"
"""Environment variable of a trainer: start of its command on the monotonic clock that all processes share."""
MAX_EPOCHS = 100
"""Largest number of epochs: a small data set would be repeated thousands of times in an hour, and learned by heart."""
MIN_TRAINING_SHARE = 0.1
"""Smallest share of the time for training: with less, a schedule has no time to rise and fall."""
ENDING_SECONDS = 7.0
"""Seconds after the last evaluation for the model, the report and the import of scikit-learn; twice as many if other programs
slowed down the start."""
SIMPLE_MODELS_SHARE, MAX_SIMPLE_MODELS_SECONDS = 0.1, 60.0
"""Time for the simple models that are compared with the network: a share of the training, and its maximum."""
RESERVED_SHARE, RESERVED_SECONDS = 0.05, 6.0
"""Share of `train.within` reserved for the simple models, which seldom need more, and the seconds for short times."""
EVALUATION_SHARE = 1 / 3
"""Assumed cost of an evaluation batch relative to a training step, until one is timed: it runs forward only."""
MAX_EVALUATION_SHARE = 0.25
"""Longest assumed evaluation, as a share of the time, until one is timed."""


class TimeTarget:
    """Clock of a run with `train.within`; it runs only while a command trains the run.

    Args:
        job: job with the time limit.
        began: start of the command on the monotonic clock, if no supervisor has set it.
        evaluation_batches: number of batches of an evaluation.
        test_batches: number of batches of the final test.
    """

    def __init__(self, job: Job, began: float, evaluation_batches: float, test_batches: float) -> None:
        self.job, self.seconds = job, parse_duration(job.train.within or "")
        self.command = self.origin = float(os.environ.get(COMMAND_BEGAN, began))
        """Start of this command, and start of the first command as if no time had passed between the commands."""
        self.start_seconds = self.trained_seconds = 0.0
        """Seconds used before the first step of each command, and by training before this command."""
        self.evaluation_batches, self.test_share = evaluation_batches, test_batches / max(evaluation_batches, 1e-9)
        self.evaluation_seconds: float | None = None
        """Seconds of the longest evaluation so far."""
        self.step_seconds, self.last_step = math.inf, (time.monotonic(), 0)
        """Seconds of the fastest step so far, as first steps allocate memory; end time and number of the last step."""

    def begin(self) -> None:
        """Note the time before the first step, which no schedule can use.

        Raises:
            SpecError: if hardly any time is left.
        """
        self.start_seconds = self.read_clock() - self.trained_seconds
        if self.trained_seconds or self.seconds_left() >= MIN_TRAINING_SHARE * self.seconds:
            return
        fixed_seconds = self.start_seconds + 2 * ENDING_SECONDS
        needed = math.ceil(fixed_seconds / (1 - SIMPLE_MODELS_SHARE - 2 * MIN_TRAINING_SHARE))
        raise self.job.spec_error(
            ("train", "within"),
            f"is {self.job.train.within}; the first step begins after {self.start_seconds:.0f} s, and "
            f"{self._reserve_seconds():.0f} s are reserved for the time after the training",
            f"{needed}s or more",
            "raise it, or shorten the start: fewer samples, a smaller network",
        )

    def read_clock(self) -> float:
        """Return the used seconds."""
        return time.monotonic() - self.origin

    def seconds_left(self) -> float:
        """Return the seconds that the training may still take."""
        return self.seconds - self._reserve_seconds() - self.read_clock()

    def measure_share(self, step: int, epochs: float) -> float:
        """Return the finished share of the training, by the clock or by the epochs so far."""
        now = time.monotonic()
        last_end, last_step = self.last_step
        if step > last_step:
            self.step_seconds = min(self.step_seconds, (now - last_end) / (step - last_step))
        self.last_step = now, step
        trained_seconds, seconds_left = self.read_clock() - self.start_seconds, max(0.0, self.seconds_left())
        time_share = trained_seconds / (trained_seconds + seconds_left) if seconds_left else 1.0
        return max(time_share, epochs / MAX_EPOCHS)

    def add_evaluation(self, seconds: float) -> None:
        """Reserve the time of the longest evaluation for the last one."""
        self.evaluation_seconds = max(seconds, self.evaluation_seconds or 0.0)

    def _reserve_seconds(self) -> float:
        """Return the seconds needed after the last step, including the simple models."""
        evaluation = self.evaluation_seconds
        if evaluation is None:
            step_seconds = 0.0 if math.isinf(self.step_seconds) else self.step_seconds
            assumed_seconds = self.evaluation_batches * EVALUATION_SHARE * step_seconds
            evaluation = min(assumed_seconds, MAX_EVALUATION_SHARE * self.seconds)
        simple_models = max(RESERVED_SHARE * self.seconds, min(RESERVED_SECONDS, SIMPLE_MODELS_SHARE * self.seconds))
        if self.job.baselines == "off":
            simple_models = 0.0
        # A slow start shows that other programs slow this one down.
        ending = min(max(ENDING_SECONDS, self.start_seconds / 2), 2 * ENDING_SECONDS)
        return evaluation * (1 + self.test_share) + ending + min(MAX_SIMPLE_MODELS_SECONDS, simple_models)

    def state(self, share: float) -> dict[str, float]:
        """Return the state for a checkpoint; `share` is the value that all processes use."""
        clock = {"used": self.read_clock(), "command": self.command, "origin": self.origin}
        return {**clock, "trained": self.read_clock() - self.start_seconds, "limit": self.seconds, "share": share}

    def load(self, state: Mapping[str, float]) -> float:
        """Restore the `state` of this command, or of an earlier one; the time between two commands does not count.

        Returns:
            The used share of the time; 0 if an extended run has more time.
        """
        self.origin = state["origin"] if state["command"] == self.command else self.command - state["used"]
        self.trained_seconds = state["trained"]
        return state["share"] if state["limit"] == self.seconds else 0.0
