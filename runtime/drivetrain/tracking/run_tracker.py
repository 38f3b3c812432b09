"""Copies a run to a tracking server from the files of its folder, so that the server can only lag behind.

A process beside the training does it. It ends when its standard input is closed; a number that comes before is the seconds
that it may take to finish.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from pathlib import Path

from drivetrain.errors import Busy, StorageError
from drivetrain.job.track import MLFLOW, Track
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import child_process, file_lock, signals
from drivetrain.system.console import guard_output, say
from drivetrain.system.files import blame_storage
from drivetrain.system.run_files import METRICS_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import RunState, parse_number
from drivetrain.tracking.event_log import EventLog, OutageLog
from drivetrain.tracking.run_description import collect_tags, describe_run, read_contents, to_milliseconds
from drivetrain.tracking.tracker import Row, Tracker, TrackerError

NO_METRICS = ("step", "epoch", "batch")
"""Of a row of metrics.jsonl."""
LEDGER = "sent.jsonl"
LOCK_SECONDS = 20.0
"""Seconds for a process that copies the same run to end: one whose run was killed takes two, and one request."""


@contextlib.contextmanager
def open_tracker(run: Path, address: str, experiment: str | None = None, server: str = MLFLOW) -> Iterator[RunTracker]:
    """The copy of a run folder in an experiment of a server (the job's name if there is none), for this process alone.

    Raises:
        StorageError: if the run folder cannot be written.
        Busy: if another process copies this run.
    """
    target = address if server == MLFLOW else f"{server} {address}"
    files = RunFiles(run, f"tracker/{hashlib.sha256(target.encode()).hexdigest()[:8]}")
    files.make_folder()
    with blame_storage(files.path):
        handle = file_lock.acquire("lock", LOCK_SECONDS, files.open_handle)
    if handle is None:
        raise Busy(
            f"{run}: another process copies this run to the same server",
            "one process for each run and server",
            "wait until the run or the other command has ended",
        )
    with os.fdopen(handle, "rb"):
        name = experiment or str(read_stored_spec(run).data.get("name") or run.name)
        module = importlib.import_module(f"drivetrain.tracking.servers.{server}")
        yield RunTracker(run, module.connect(address, name, files), files)


class RunTracker:
    """A run folder, and its copy on one server.

    A ledger says which rows of metrics.jsonl the server has, so that none is lost and none is sent twice. A row whose
    arrival a crash kept from being recorded is sent again with the time that was noted before, and a server that
    compares points keeps it once.
    """

    def __init__(self, run: Path, tracker: Tracker, files: RunFiles) -> None:
        """
        Args:
            files: the folder of the server in the run folder, which has the ledger.
        """
        self.run, self.tracker, self.files = run, tracker, files
        self.metrics = JsonLinesTail(RunFiles(run), METRICS_FILE)
        self.waiting: dict[str, Row] = {}
        """Rows that were read and not sent, by their keys in the ledger."""
        self.page = ""
        """The address of the copy, once it exists."""
        self.times: dict[str, int] = {}
        """When a row was first to be sent, by its key, in milliseconds since 1970."""
        self.sent: set[str] = set()
        for entry in files.read_rows(LEDGER):
            self.times |= dict.fromkeys(entry.get("rows", ()), entry.get("time", 0))
            self.sent.update(entry.get("sent", ()))

    def read(self) -> None:
        """Look for new rows; raises StorageError if the ledger cannot be written."""
        rows, is_rewritten = self.metrics.read()
        if is_rewritten:  # rows that a resume has removed are not sent
            self.waiting.clear()
        by_key = {hashlib.blake2b(json.dumps(row).encode(), digest_size=8).hexdigest(): row for row in rows}
        now = time.time_ns() // 1_000_000
        if new := [key for key in by_key if key not in self.times]:
            self._record({"time": now, "rows": new})
            self.times |= dict.fromkeys(new, now)
        for key, row in by_key.items():
            values = {name: parse_number(value) for name, value in row.items() if name not in NO_METRICS}
            numbers = {name: value for name, value in values.items() if value is not None}
            if key not in self.sent and isinstance(step := row.get("step"), int) and numbers:
                self.waiting[key] = Row(step, self.times[key], numbers)

    def send(self, deadline: float = math.inf) -> None:
        """Send the rows that wait, until a moment of time.monotonic().

        Raises:
            TrackerError: if the server refuses them or gives no answer; they go on waiting.
            StorageError: if the ledger cannot be written.
        """
        if not self.page:
            self.page = self.tracker.begin(describe_run(self.run))
        while self.waiting and time.monotonic() < deadline:
            # As many rows as have at most so many numbers together, and one at least.
            counts = accumulate(len(row.values) for row in self.waiting.values())
            batch = dict(islice(self.waiting.items(), max(1, sum(count <= self.tracker.most for count in counts))))
            self.tracker.log([*batch.values()])
            self._record({"sent": [*batch]})
            self.sent.update(batch)
            for key in batch:
                del self.waiting[key]

    def finish(self) -> str:
        """Send the plan as it became, the files and the status; returns what was not sent, and why.

        Raises:
            TrackerError: as `send`.
        """
        self.tracker.describe(collect_tags(self.run))
        state = RunState.read(self.run)
        return self.tracker.end(str(state.status), to_milliseconds(state.ended), read_contents(self.run))

    def _record(self, entry: dict[str, object]) -> None:
        with blame_storage(self.files.path / LEDGER), self.files.open(LEDGER, "a") as file:
            file.write(f"\n{json.dumps(entry)}\n")  # an entry that a crash has cut off ends before this one
            file.flush()
            os.fsync(file.fileno())


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
