"""Pace: how a contender's loop is driven from outside: so many steps, then wait; or straight on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

ESTIMATE_STEPS = 3
"""Steps from which the time of one is estimated."""


def open_answer_pipe() -> TextIO:
    """The pipe to the parent, for answers alone: whatever else is printed goes to the log."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


class Pace:
    """Stops a training loop between two steps until the next order; each contender calls `end_step` after each step."""

    has_orders = False
    """Whether there are orders; without them the loop runs to its end."""

    def end_step(self, samples: int, other_seconds: float = 0.0) -> None:
        """After a step.

        Args:
            samples: of the step; for texts, their tokens.
            other_seconds: seconds so far in this process that are no training: evaluation, checkpoints.
        """


class OrderedPace(Pace):
    """Does as many steps as the parent says.

    Args:
        pipe: for answers.
        warm_up_steps: steps before the first answer; the time of one is estimated from the last of them.
        collect_extra: returns further entries of the first answer.
    """

    has_orders = True

    def __init__(self, pipe: TextIO, warm_up_steps: int, collect_extra: Callable[[], dict[str, Any]] = dict) -> None:
        self.pipe, self.warm_up_steps, self.collect_extra = pipe, warm_up_steps, collect_extra
        self.done_steps = self.samples = 0
        self.ordered_steps = 0
        self.start = self.other_seconds_before = 0.0

    def end_step(self, samples: int, other_seconds: float = 0.0) -> None:
        """Count, and where the order is done, answer and wait."""
        self.done_steps += 1
        self.samples += samples
        if not self.ordered_steps:
            if self.done_steps == self.warm_up_steps - ESTIMATE_STEPS:
                self._start_clock(other_seconds)
            elif self.done_steps == self.warm_up_steps:
                self._answer_and_wait(self._measure_block(other_seconds) | self.collect_extra(), other_seconds)
        elif self.done_steps == self.ordered_steps:
            self._answer_and_wait(self._measure_block(other_seconds), other_seconds)

    def _measure_block(self, other_seconds: float) -> dict[str, Any]:
        seconds = time.perf_counter() - self.start - (other_seconds - self.other_seconds_before)
        return {"seconds": seconds, "samples": self.samples, "steps": self.ordered_steps or ESTIMATE_STEPS}

    def _start_clock(self, other_seconds: float) -> None:
        self.samples, self.start, self.other_seconds_before = 0, time.perf_counter(), other_seconds

    def _answer_and_wait(self, answer: dict[str, Any], other_seconds: float) -> None:
        print(json.dumps(answer), file=self.pipe, flush=True)
        line = sys.stdin.readline()
        if not line:
            # From within someone else's loop there is no other way out.
            os._exit(0)
        self.ordered_steps, self.done_steps = int(line), 0
        self._start_clock(other_seconds)


def serve(pipe: TextIO, work: Callable[[], int], extra: dict[str, Any]) -> None:
    """Do whole pieces of work by order and answer each with its seconds; `work` returns its samples."""
    orders = iter(["1\n"])
    while line := next(orders, "") or sys.stdin.readline():
        start, samples = time.perf_counter(), 0
        for _ in range(int(line)):
            samples += work()
        answer = {"seconds": time.perf_counter() - start, "samples": samples, "steps": int(line)}
        print(json.dumps(answer | extra), file=pipe, flush=True)
