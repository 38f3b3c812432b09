"""The process that copies a run to its tracking server. Started by `tracker_child`, beside the trainer.

python -m drivetrain.tracking.tracker_process RUN SERVER ADDRESS [EXPERIMENT]

It ends when its standard input is closed; a number that comes before is the seconds that it may take for the rest.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from drivetrain.errors import Busy, StorageError
from drivetrain.system import signals
from drivetrain.system.console import guard_output, say
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.run_tracker import RunTracker, open_tracker
from drivetrain.tracking.tracker import TrackerError

POLL_SECONDS = 5.0
"""Seconds between two looks at the run."""
LONGEST_PAUSE = 60.0
"""Seconds between two attempts at a server that does not answer."""
ORPHANED_SECONDS = 5.0
"""Seconds for the rest if the process that started this one has died."""


def main() -> int:
    """Copy until the end of the run; never fails, since the run folder has everything."""
    guard_output()
    signals.ignore()  # the run's end is what ends this process
    os.nice(10)
    run, server, address, *experiment = sys.argv[1:]
    events = EventLog(Path(run))
    try:
        with open_tracker(Path(run), address, experiment[0] if experiment else None, server) as tracker:
            copy = Copying(tracker, events, address)
            while (seconds := _read_end(copy.pause)) is None:
                copy.attempt()
            copy.end(time.monotonic() + seconds)
    except (StorageError, Busy) as error:
        events.add("tracker", f"stopped: {error.given}; {_later(run)}")
    return 0


class Copying:
    """Sends what is new, and is patient with a server that is away."""

    def __init__(self, tracker: RunTracker, events: EventLog, address: str) -> None:
        self.tracker = tracker
        self.events = events
        self.address = address
        self.pause = 0.2
        """Seconds until the next attempt; the first comes at once, so that a wrong address is told before training."""
        self.trouble = ""
        self.final = False
        """Whether the server has refused for good."""

    def attempt(self) -> None:
        """Send what is new; trouble is told once."""
        self.tracker.read()
        if self.final:
            return
        begun = bool(self.tracker.page)
        try:
            self.tracker.send()
        except TrackerError as error:
            self._failed(error)
            return
        if self.trouble:
            self.events.add("tracker", f"{self.address} answers again; everything so far is there")
        elif not begun:
            say(f"tracker: {self.tracker.page}")
        self.trouble, self.pause = "", POLL_SECONDS

    def end(self, until: float) -> None:
        """Send the rest, at most until then; what is missing is told with the command that sends it."""
        self.tracker.read()
        self.tracker.tracker.until = until
        pause = 0.5
        while True:
            try:
                self.tracker.send(lambda: time.monotonic() < until)
                if not self.tracker.waiting and (unsent := self.tracker.finish()):
                    self.events.add("tracker", f"not sent: {unsent}")
                if not self.tracker.waiting:
                    return
            except TrackerError as error:
                self.trouble = error.given
                if not error.passing:
                    break
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        rows = f"{len(self.tracker.waiting):,} rows were" if self.tracker.waiting else "the end of the run was"
        self.events.add(
            "tracker", f"{rows} not sent{': ' * bool(self.trouble)}{self.trouble}; {_later(self.tracker.run)}"
        )

    def _failed(self, error: TrackerError) -> None:
        self.final = not error.passing
        if error.given != self.trouble:
            self.events.add("tracker", f"{error.given}; training goes on, and what is missing is sent later")
            if error.action:
                say(f"  do:       {error.action}")
        self.trouble = error.given
        self.pause = min(max(POLL_SECONDS, 2 * self.pause), LONGEST_PAUSE)


def _later(run: object) -> str:
    return f"`drivetrain track {run}` sends it"


def _read_end(pause: float) -> float | None:
    """The seconds for the rest, once the run has ended; None if it goes on after the pause."""
    if not select.select([sys.stdin], [], [], pause)[0]:
        return None
    text = sys.stdin.readline().strip()
    return float(text) if text else ORPHANED_SECONDS


if __name__ == "__main__":
    sys.exit(main())
