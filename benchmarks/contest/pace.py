"""Pace: how a contender's loop is driven from outside: so many steps, then wait; or straight on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

ROUGH = 3
"""Steps that tell roughly how long one takes."""


def answers() -> TextIO:
    """The pipe to the parent, for answers alone: whatever else is printed goes to the log."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


class Pace:
    """Stops a training loop between two steps until the next order; every contender calls `step` after each step."""

    live = False
    """Whether there are orders; without them the loop runs to its end."""

    def step(self, samples: int, aside: float = 0.0) -> None:
        """After a step.

        Args:
            samples: of the step; for texts, their tokens.
            aside: seconds so far in this process that are no training: evaluation, checkpoints.
        """


class Ordered(Pace):
    """Does as many steps as the parent says.

    Args:
        pipe: for answers.
        warm: steps before the first answer, the last of which tell how long one takes.
        told: more for the first answer.
    """

    live = True

    def __init__(self, pipe: TextIO, warm: int, told: Callable[[], dict[str, Any]] = dict) -> None:
        self.pipe, self.warm, self.told = pipe, warm, told
        self.done = self.samples = 0
        self.order = 0
        self.start = self.before = 0.0

    def step(self, samples: int, aside: float = 0.0) -> None:
        """Count, and where the order is done, answer and wait."""
        self.done += 1
        self.samples += samples
        if not self.order:
            if self.done == self.warm - ROUGH:
                self._begin(aside)
            elif self.done == self.warm:
                self._next(self._block(aside) | self.told(), aside)
        elif self.done == self.order:
            self._next(self._block(aside), aside)

    def _block(self, aside: float) -> dict[str, Any]:
        seconds = time.perf_counter() - self.start - (aside - self.before)
        return {"seconds": seconds, "samples": self.samples, "steps": self.order or ROUGH}

    def _begin(self, aside: float) -> None:
        self.samples, self.start, self.before = 0, time.perf_counter(), aside

    def _next(self, answer: dict[str, Any], aside: float) -> None:
        print(json.dumps(answer), file=self.pipe, flush=True)
        line = sys.stdin.readline()
        if not line:
            # From within someone else's loop there is no other way out.
            os._exit(0)
        self.order, self.done = int(line), 0
        self._begin(aside)


def serve(pipe: TextIO, work: Callable[[], int], told: dict[str, Any]) -> None:
    """Whole pieces of work by order, each answered with its seconds; `work` tells its samples."""
    orders = iter(["1\n"])
    while line := next(orders, "") or sys.stdin.readline():
        start, samples = time.perf_counter(), 0
        for _ in range(int(line)):
            samples += work()
        answer = {"seconds": time.perf_counter() - start, "samples": samples, "steps": int(line)}
        print(json.dumps(answer | told), file=pipe, flush=True)
