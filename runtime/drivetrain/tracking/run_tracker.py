"""Copies a run to a tracking server: a thread reads the run's folder, and the client of the server sends.

The trainer knows nothing of it. Whatever the client does or the server answers is an event, and the run continues.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from os import environ
from pathlib import Path

from drivetrain.errors import Failure
from drivetrain.job.track import MLFLOW, WANDB, Track
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system.console import say
from drivetrain.system.run_files import METRICS_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import RunState, parse_number
from drivetrain.system.secrets import mask_secrets
from drivetrain.tracking.event_log import EventLog, OutageLog
from drivetrain.tracking.run_description import collect_tags, describe_run, read_contents
from drivetrain.tracking.tracker import Row, Tracker, TrackerError

PACKAGES = {MLFLOW: "mlflow-skinny", WANDB: "wandb"}
"""Packages that have the client of a server, by its kind, which is the name of their module, too."""
NO_METRICS = ("step", "epoch", "batch")
"""Keys of a row of metrics.jsonl that are no metrics."""
POLL_SECONDS = 1.0
FINISH_SECONDS = 5.0
"""Time limit for what is missing at the end."""
MAX_WAITING = 50_000
"""Rows that wait in memory for a server; the others wait in the run folder."""


def start_tracker(run: Path, track: Track | None) -> RunTracker | None:
    """Start to copy a run, if its job wants that and the client of the server is installed."""
    if track is None:
        return None
    kind, address = track.target
    package, image = PACKAGES.get(kind), environ.get("DRIVETRAIN_IMAGE")
    if package and find_spec(kind) is None:
        action = f"{sys.executable} -m pip install {package}"
        if image:
            action = f"make image-{image} EXTRAS={kind}"
        EventLog(run).add("tracker", f"track.{kind}: {package} is not installed, so this run is not tracked")
        say(f"  possible: the client of the server\n  do:       {action}")
        return None
    name = track.experiment or str(read_stored_spec(run).data.get("name") or run.name)
    server = importlib.import_module(f"drivetrain.tracking.servers.{kind}")
    return RunTracker(run, server.connect(address, name), f"track.{kind}: {address}")


class RunTracker:
    """The thread that copies one run to a server, which messages call `server`."""

    def __init__(self, run: Path, tracker: Tracker, server: str) -> None:
        self.run, self.tracker, self.server = run, tracker, server
        self.metrics = JsonLinesTail(RunFiles(run), METRICS_FILE)
        self.outages = OutageLog(EventLog(run), "tracker", server)
        self.waiting: list[Row] = []
        self.sent_step = -1
        """Last step that the server has completely."""
        self.has_begun = self.is_cancelled = False
        self.run_ended = threading.Event()
        self.thread = threading.Thread(target=self._copy, name="tracker", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Send the rest, after the run has ended, and wait for it a few seconds."""
        self.run_ended.set()
        self.thread.join(FINISH_SECONDS)
        if self.thread.is_alive():
            self.is_cancelled = True
            text = f"{self.server} did not take the end of the run within {FINISH_SECONDS:g} s"
            EventLog(self.run).add("tracker", f"{text}; {self.run} has everything")

    def _copy(self) -> None:
        is_due = True  # the run is created at once
        while not self.run_ended.is_set():
            if is_due or len(self.waiting) >= MAX_WAITING:
                failure = self._call(self._send)
                if not self.is_cancelled:
                    self.outages.note_attempt(failure)
            is_due = len(self.waiting) < MAX_WAITING and self._read_rows()
            self.run_ended.wait(0 if is_due else POLL_SECONDS * (30 if len(self.waiting) >= MAX_WAITING else 1))
        failure = self._call(self._finish)
        if failure and not self.is_cancelled:
            EventLog(self.run).add("tracker", f"{failure.given}; not all was sent, and {self.run} has everything")
            say(f"  do:       {failure.action}")

    def _call(self, call: Callable[[], None]) -> Failure | None:
        """Make calls to the server; returns the failure that they ended with."""
        try:
            if not self.is_cancelled:
                call()
        except Failure as error:
            return error
        except Exception as error:  # a client may raise anything
            lines = str(error).splitlines() or [type(error).__name__]
            action = "look at the log of the server, or correct the address"
            return TrackerError(f"{self.server}: {mask_secrets(lines[0])[:200]}", "a server that answers", action)
        return None

    def _read_rows(self) -> bool:
        """Read the new rows; returns whether an evaluation is among them."""
        has_evaluation, (rows, is_rewritten) = False, self.metrics.read()
        if is_rewritten:  # the run went back to a checkpoint
            self.waiting.clear()
        milliseconds = time.time_ns() // 1_000_000
        for row in rows:
            step, numbers = row.get("step"), {name: parse_number(row[name]) for name in row if name not in NO_METRICS}
            values = {name: number for name, number in numbers.items() if number is not None}
            if values and isinstance(step, int):
                self.waiting.append(Row(step, milliseconds, values))
                has_evaluation |= "lr" not in values  # rows of steps have a learning rate
        return has_evaluation

    def _send(self, *, all_rows: bool = False) -> None:
        """Send the waiting rows except the last step, whose evaluation may follow; create the run if it is missing."""
        if not self.has_begun:
            page, self.sent_step = self.tracker.begin(describe_run(self.run))
            self.has_begun = True
            say(f"tracker: {page}")
        rows = [row for row in self.waiting if row.step > self.sent_step]
        if rows and "lr" in rows[-1].values and not all_rows:
            rows.pop()
        if rows:
            self.tracker.log(rows)
            self.sent_step = rows[-1].step
        self.waiting = [row for row in self.waiting if row.step > self.sent_step]

    def _finish(self) -> None:
        self._read_rows()
        status = str(RunState.read(self.run).status)
        self._send(all_rows=status == "done")
        self.tracker.end(status, collect_tags(self.run), read_contents(self.run))
