"""Starts the process that copies a run to a tracking server, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.job.track import Track
from runtime.tracking.event_log import EventLog

REST = 60.0
"""Seconds for what is not sent when the run ends."""
STOPPED_REST = 2.0
"""The same for a run that was stopped, whose report takes four: container engines wait ten in all before they kill."""
AFTERWARDS = 1.5
"""Seconds after that until the process is killed."""


VARIABLE = "DRIVETRAIN_TRACKER"
"""`host` in a container whose starter copies its run: it needs neither a network nor the server's password."""


def beside(run: Path, track: Track | None) -> TrackerChild | None:
    """The process for a run that starts in this process; None if the job wants none, or our starter has one."""
    return TrackerChild(run, track) if track and os.environ.get(VARIABLE) != "host" else None


class TrackerChild:
    """The process beside one run."""

    def __init__(self, run: Path, track: Track) -> None:
        self.run = run
        words = [*track.target, *([track.experiment] if track.experiment else [])]
        # Its own process group: Ctrl-C reaches the run, and this process ends after it.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runtime.tracking.tracker_process", str(run), *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            process_group=0,
        )

    def leave(self, seconds: float = REST) -> None:
        """Let it send the rest."""
        pipe = self.process.stdin
        if pipe and not pipe.closed:
            with contextlib.suppress(OSError):  # it has ended
                pipe.write(f"{seconds}\n".encode())
                pipe.close()

    def cancel(self) -> None:
        """End it at once, for a run whose folder is removed."""
        self.process.kill()
        self.process.wait()

    def finish(self, *, stopped: bool = False) -> None:
        """Let it send the rest, and wait for it."""
        seconds = STOPPED_REST if stopped else REST
        self.leave(seconds)
        try:
            self.process.wait(seconds + AFTERWARDS)
        except subprocess.TimeoutExpired:  # a request of before, to a server that does not answer
            self.process.kill()
            self.process.wait()
            EventLog(self.run).add(
                "tracker", f"the server did not answer in time; `drivetrain track {self.run}` sends the rest"
            )


@contextlib.contextmanager
def following(track: Track | None) -> Iterator[Callable[[Path], None]]:
    """For runs in a container: a function that takes the folder of each run as it starts; the last one ends with the
    block.
    """
    children: list[TrackerChild] = []

    def opened(run: Path) -> None:
        if track is None:
            return
        if children:
            children[-1].leave()
        children.append(TrackerChild(run, track))

    try:
        yield opened
    finally:
        for child in children:
            child.finish()
