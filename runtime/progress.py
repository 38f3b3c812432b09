"""Progress: a bar on a terminal, one plain line at a time everywhere else."""

from __future__ import annotations

import os
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from runtime.run import Run

LINE_EVERY = 5.0
"""Seconds between two plain lines."""
REFRESH_EVERY = 0.2
"""Seconds between two updates of the bar."""


class Progress:
    """Shows where the run stands."""

    def __init__(self, total: int, done: int) -> None:
        self.start, self.done_before, self.total = time.monotonic(), done, total
        self.shown = -float("inf")
        self.bar: Bar | None = None
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
            self.bar = Bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
                           console=Console(highlight=False), auto_refresh=False)  # fmt: skip
            self.task = self.bar.add_task("train", total=total, completed=done, text="")
            self.bar.start()

    def step(self, run: Run, step: int, loss: float) -> None:
        """After step number `step`."""
        now = time.monotonic()
        if now - self.shown < (REFRESH_EVERY if self.bar else LINE_EVERY):
            return
        self.shown = now
        done = step - self.done_before
        rate = done / max(1e-9, now - self.start)
        left = clock_time((self.total - step) / max(1e-9, rate))
        head = f"epoch {run.counters.epoch + 1}/{run.job.train.epochs}"
        text = f"step {step}/{self.total}  loss {loss:.4f}  {rate * run.batches.batch_size:.0f} samples/s"
        if self.bar:
            self.bar.update(self.task, description=head, completed=step, text=f"{text}  {left} left",
                            refresh=True)  # fmt: skip
        else:
            say(f"{head}  {text}  {left} left")

    def evaluation(self, run: Run, best: bool) -> None:
        """After an evaluation."""
        shown = "  ".join(f"{name} {value:.4f}" for name, value in run.last.items())
        text = f"epoch {run.counters.epoch + 1}/{run.job.train.epochs}  {shown}{'  best' if best else ''}"
        if self.bar:
            self.bar.console.print(text)
        else:
            say(text)

    def close(self) -> None:
        """Leave the screen clean."""
        if self.bar:
            self.bar.stop()


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def clock_time(seconds: float) -> str:
    """`0:42`, `12:05`, `1:02:03`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
