"""Shows the progress of a run: a live view on a terminal, single lines everywhere else.

The live view reads the run folder, as `drivetrain watch` does, and is painted by its own thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import DrivetrainError
from runtime.plan.plan_table import console
from runtime.system.files import write_json
from runtime.tracking.live.dashboard import left_text, screen
from runtime.tracking.live.run_reader import PROGRESS, RunReader
from runtime.tracking.live.terminal_painter import Painter
from runtime.tracking.live.time_left import TimeLeft

if TYPE_CHECKING:
    from runtime.training.run import Run

LINE_EVERY = 5.0
"""Seconds between two lines."""
PAINT_EVERY = 1.0
"""Seconds between two refreshes, the interval at which sensors are read."""
PAINT_SHARE, PAINT_LEAST = 0.005, 10.0
"""Largest share of a CPU that painting may use, and the longest interval in seconds that follows from it."""
EVALUATION_SHARE = 1 / 3
"""Assumed cost of an evaluation batch relative to a training step, until one was timed: it runs forward only."""


class Progress:
    """Shows the progress of a run."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.shown = -float("inf")
        self.left: TimeLeft | None = None
        self.live: Live | None = None
        self.spent = 0.0
        """CPU seconds of the live view, known after it is closed."""

    def step(self, run: Run, step: int, loss: float) -> None:
        """Report step number `step`."""
        now = time.monotonic()
        if self.left is None:
            self.left = self._begin(run)
        self.left.add(now, step)
        if self.live or now - self.shown < LINE_EVERY:
            return
        self.shown = now
        seconds = self.left.step_seconds()
        head = f"epoch {run.counters.epoch + 1}/{run.job.train.epochs}"
        speed = f"  {run.batches.batch_size / seconds:.0f} samples/s" if seconds else ""
        say(f"{head}  step {step}/{self.total}  loss {loss:.4f}{speed}  {self._left(run, now)}")

    def _begin(self, run: Run) -> TimeLeft:
        """Write what `watch` needs to the run folder, and start the live view."""
        batches = len(run.dataset.validation) / run.batches.batch_size
        ahead = {
            "steps": self.total,
            "steps_per_epoch": run.batches.per_epoch,
            "evaluation_steps": batches * EVALUATION_SHARE,
        }
        try:
            write_json(run.folder / PROGRESS, ahead)
        except DrivetrainError as error:
            say(f"storage: {error.given}; `drivetrain watch` will not tell the time left")
        if live_terminal():
            self.live = Live(run.folder)
        return TimeLeft(self.total, run.batches.per_epoch, ahead["evaluation_steps"])

    def _left(self, run: Run, now: float) -> str:
        assert self.left is not None
        left, most = self.left.left(now), run.time_left()
        at_most = run.job.train.early_stopping is not None or (left is not None and most < left)
        return left_text(None if left is None else min(left, most), at_most)

    def evaluation(self, run: Run, best: bool) -> None:
        """Report an evaluation."""
        if self.live is None:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in run.last.items())
            say(f"epoch {run.counters.epoch + 1}/{run.job.train.epochs}  {shown}{'  best' if best else ''}")

    def close(self) -> None:
        """Close the live view, and leave its last state on the screen."""
        if self.live:
            self.live.close()
            self.spent += self.live.spent
            self.live = None


class Live:
    """A thread that reads a run folder and paints it until closed."""

    def __init__(self, folder: Path) -> None:
        self.follower, self.painter = RunReader(folder), Painter(console())
        self.spent = 0.0
        """CPU seconds of the painting thread so far."""
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work, name="live view", daemon=True)
        self.painter.start()
        self.thread.start()

    def _work(self) -> None:
        try:
            rest = PAINT_EVERY
            while not self.stop.wait(rest):
                before = self.spent
                self._paint()
                rest = pause(self.spent - before)
            self._paint()
        except Exception as error:
            # A failing view must not end the run, which continues with plain lines.
            say(f"the live view ended: {error}")

    def _paint(self) -> None:
        self.painter.paint(partial(screen, self.follower.read()))
        self.spent = time.thread_time()

    def close(self) -> None:
        """Paint a last time, and leave the text on the screen."""
        self.stop.set()
        self.thread.join()
        self.painter.leave()


def pause(cost: float) -> float:
    """Seconds until the next refresh, given the CPU seconds of the last: on a busy machine the view refreshes less
    often.
    """
    return min(PAINT_LEAST, max(PAINT_EVERY, cost / PAINT_SHARE))


def live_terminal() -> bool:
    """Whether stdout is a terminal that can be painted on."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """Print a line, unbuffered."""
    print(text, flush=True)
