"""Starts the process that copies a run to a tracking server, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from drivetrain.job.track import Track
from drivetrain.tracking.event_log import EventLog

SECONDS_TO_SEND_REST = 60.0
"""Seconds that the process gets to send the rest after its run has ended."""
SECONDS_TO_SEND_REST_IF_STOPPED = 2.0
"""The same after a stop: container engines kill after ten seconds in all, and the report needs four of them."""
KILL_DELAY = 1.5
"""Seconds beyond this time until the process is killed."""
TRACKED_BY_VARIABLE = "DRIVETRAIN_TRACKER"
"""Set to `host` in a container whose run the host tracks: the container then needs neither a network nor the password
of the server.
"""


def start_child(run: Path, track: Track | None) -> TrackerChild | None:
    """Start the process for a run that starts in this process; None if the job wants none, or the host has one."""
    return TrackerChild(run, track) if track and os.environ.get(TRACKED_BY_VARIABLE) != "host" else None


class TrackerChild:
    """The process that copies one run to its server."""

    def __init__(self, run: Path, track: Track) -> None:
        self.run = run
        kind, address = track.target
        arguments = [kind, address, *([track.experiment] if track.experiment else [])]
        # Its own process group: Ctrl-C reaches the run, and this process ends after it. It imports from where this
        # one does, and, by -P, from no folder that only happens to be the working folder.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "drivetrain.tracking.tracker_process", str(run), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            process_group=0,
        )

    def announce_end(self, seconds: float = SECONDS_TO_SEND_REST) -> None:
        """Tell it that the run has ended, and how many seconds it has to send the rest."""
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
        """Tell it that the run has ended, and wait until it has sent the rest, or its time is over."""
        seconds = SECONDS_TO_SEND_REST_IF_STOPPED if stopped else SECONDS_TO_SEND_REST
        self.announce_end(seconds)
        try:
            self.process.wait(seconds + KILL_DELAY)
        except subprocess.TimeoutExpired:  # it still waits for an answer to a request that it sent before the end
            self.process.kill()
            self.process.wait()
            EventLog(self.run).add(
                "tracker", f"the server did not answer in time; `drivetrain track {self.run}` sends the rest"
            )


@contextlib.contextmanager
def children_for_runs(track: Track | None) -> Iterator[Callable[[Path], None]]:
    """Yield a function to be called with the folder of each run that starts in a container.

    It starts the run's process, and tells the previous one that its run has ended. All end with the block.
    """
    children: list[TrackerChild] = []

    def open_child(run: Path) -> None:
        if track is None:
            return
        if children:
            children[-1].announce_end()
        children.append(TrackerChild(run, track))

    try:
        yield open_child
    finally:
        for child in children:
            child.finish()
