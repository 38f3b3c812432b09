"""Trains one trial of a sweep as a run of its own, and ends it early as soon as the study says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.job_spec.spec_source import COPY_VARIABLE, SpecSource
from runtime.plan import show_plan
from runtime.system import child_process
from runtime.system.files import parse_row
from runtime.system.signals import SignalForwarder

PAUSE = 0.2
"""Seconds between two looks at the metrics of the running trial."""
Note = Callable[[int, float], bool]
"""Takes an epoch, from 0 on, and the metric after it; returns whether the trial is to be ended."""


@dataclass
class EpochReader:
    """Reads the metric of each epoch once from a metrics.jsonl that is being written."""

    path: Path
    metric: str
    seen: int = -1
    """The last epoch that was read."""
    offset: int = 0
    inode: int = 0

    def new(self) -> Iterator[tuple[int, float]]:
        """Epochs that were evaluated since the last call, with their metric."""
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self.inode:  # a resumed run writes the file anew, with the same rows up to its checkpoint
                    self.inode, self.offset = inode, 0
                file.seek(self.offset)
                lines = file.readlines()
        except OSError:
            return
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self.offset += sum(map(len, lines))
        for line in lines:
            row = parse_row(line) or {}
            epoch, value = row.get("epoch"), row.get(self.metric)
            if isinstance(epoch, int) and isinstance(value, int | float) and epoch > self.seen:
                self.seen = epoch
                yield epoch, float(value)


def train(
    source: SpecSource,
    options: Sequence[str],
    forward: SignalForwarder,
    path: Callable[[], Path | None],
    metric: str,
    note: Note,
    shown: Path,
) -> tuple[int, bool]:
    """Train, or resume; returns the exit code, and whether the trial was ended early.

    Args:
        source: the job file, and the copy from which all trials are trained.
        options: those of `drivetrain train`.
        forward: forwards signals to the training.
        path: its run folder, once there is one.
        metric: to watch.
        note: decides after each epoch.
        shown: the plan of the first trial, which is not shown again.
    """
    reader: EpochReader | None = None
    ended = False

    def look() -> bool:
        nonlocal reader
        if reader is None and (folder := path()):
            reader = EpochReader(folder / "metrics.jsonl", metric)
        return any(note(epoch, value) for epoch, value in (reader.new() if reader else ()))

    def wait(child: subprocess.Popen[bytes]) -> int:
        nonlocal ended
        while True:
            try:
                return child.wait(PAUSE)
            except subprocess.TimeoutExpired:
                if not ended and look():
                    ended = True
                    child.send_signal(signal.SIGTERM)

    command = [sys.executable, "-m", "runtime", "train", child_process.path_word(source.spec), *options]
    environment = {show_plan.SHOWN: str(shown), COPY_VARIABLE: str(source.copy)}
    code = child_process.child(command, environment, forward, wait=wait)
    return code, ended or look()
