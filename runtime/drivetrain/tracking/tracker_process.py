"""The process that copies a run to its tracking server, beside the training: how it is started, and what it does.

It ends when its standard input is closed; a number that comes before is the seconds that it may take to finish.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from drivetrain.errors import Busy, StorageError
from drivetrain.job.track import Track
from drivetrain.system import child_process, signals
from drivetrain.system.console import guard_output, say
from drivetrain.tracking.event_log import EventLog, OutageLog
from drivetrain.tracking.run_tracker import RunTracker, open_tracker
from drivetrain.tracking.tracker import TrackerError

POLL_SECONDS = 5.0
"""Seconds between two looks at the run, or two attempts at a server that does not answer."""
FINISH_SECONDS, FINISH_SECONDS_IF_STOPPED = 60.0, 2.0
"""Seconds to send what is missing at the end: container engines kill ten seconds after a stop, and the report needs four."""
KILL_DELAY = 1.5
"""Seconds beyond this time until the process is killed."""
TRACKED_BY_VARIABLE = "DRIVETRAIN_TRACKER"
"""Set to `host` in a container whose run the host tracks: the container then needs neither network nor password."""


def start_tracker(run: Path, track: Track | None) -> TrackerProcess | None:
    """Start the process of a run, unless the job wants none, or the host of this container has one."""
    return TrackerProcess(run, track) if track and os.environ.get(TRACKED_BY_VARIABLE) != "host" else None


class TrackerProcess:
    """The process that copies one run, as its starter sees it."""

    def __init__(self, run: Path, track: Track) -> None:
        self.run = run
        # It ends after the run, whose end closes its input.
        self.process = child_process.start_child(
            [sys.executable, "-m", __name__, str(run), *track.target, track.experiment or ""],
            child_process.build_environment({}),
            requests=subprocess.PIPE,
            outlives_us=True,
        )

    def announce_end(self, seconds: float = FINISH_SECONDS) -> None:
        """Tell it that the run has ended, and how many seconds it has to finish."""
        pipe = self.process.stdin
        if pipe and not pipe.closed:
            with contextlib.suppress(OSError):  # it has ended
                pipe.write(f"{seconds}\n".encode())
                pipe.close()

    def kill(self) -> None:
        """End it at once."""
        child_process.stop_child(self.process)

    def finish(self, *, stopped: bool = False) -> None:
        """Tell it that the run has ended, and wait until it has sent everything, or its time is over."""
        seconds = FINISH_SECONDS_IF_STOPPED if stopped else FINISH_SECONDS
        self.announce_end(seconds)
        try:  # if Ctrl-C ends our waiting, it sends the rest without us
            self.process.wait(seconds + KILL_DELAY)
        except subprocess.TimeoutExpired:  # it still waits for an answer
            self.kill()
            text = f"the server did not answer in time; `drivetrain track {self.run}` sends the rest"
            EventLog(self.run).add("tracker", text)


@contextlib.contextmanager
def track_started_runs(track: Track | None) -> Iterator[Callable[[Path], None]]:
    """Yield a function that starts the process of a run, after which the previous run has ended; all end with the block."""
    trackers: list[TrackerProcess] = []

    def follow_run(run: Path) -> None:
        if track:
            for previous in trackers:
                previous.announce_end()
            trackers.append(TrackerProcess(run, track))

    try:
        yield follow_run
    finally:
        for tracker in trackers:
            tracker.finish()


def main() -> int:
    """Copy until the end of the run; never fails, since the run folder has everything."""
    guard_output()
    signals.ignore_signals()  # the run's end is what ends this process
    os.nice(10)
    run, server, address, experiment = sys.argv[1:]
    events = EventLog(Path(run))
    try:
        with open_tracker(Path(run), address, experiment, server) as tracker:
            seconds = _copy_until_end(tracker, OutageLog(events, "tracker", address))
            if missing := _finish_copy(tracker, time.monotonic() + seconds):
                events.add("tracker", missing)
    except (StorageError, Busy) as error:
        events.add("tracker", f"stopped: {error.given}; `drivetrain track {run}` sends it")
    return 0


def _copy_until_end(tracker: RunTracker, outages: OutageLog) -> float:
    """Send rows as they come; returns, once the run has ended, the seconds that are left to finish."""
    error: TrackerError | None = None
    pause = 0.2  # seconds, so that a wrong address is told before training
    while not select.select([sys.stdin], [], [], pause)[0]:
        pause = POLL_SECONDS
        tracker.read()
        if error and not error.passing:
            continue
        is_new = not tracker.page
        try:
            tracker.send()
            error = None
        except TrackerError as refusal:
            error = refusal
        outages.note_attempt(error)
        if is_new and tracker.page:
            say(f"tracker: {tracker.page}")
    return float(sys.stdin.readline() or FINISH_SECONDS_IF_STOPPED)  # nothing comes if the starter has died


def _finish_copy(tracker: RunTracker, deadline: float) -> str:
    """Send what is missing until a moment of time.monotonic(); returns what the server does not have then, and why."""
    reason = ""
    tracker.read()
    while time.monotonic() < deadline:
        try:
            tracker.send(deadline)
            if not tracker.waiting:
                unsent = tracker.finish()
                return f"not sent: {unsent}" if unsent else ""
        except TrackerError as error:
            reason = f": {error.given}"
            if not error.passing:
                break
        time.sleep(0.5)
    missing = f"{len(tracker.waiting):,} rows were" if tracker.waiting else "the end of the run was"
    return f"{missing} not sent{reason}; `drivetrain track {tracker.run}` sends it"


if __name__ == "__main__":
    sys.exit(main())
