"""Copies a run to a tracking server from the files of its folder, so that the server can only lag behind."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.job.track import MLFLOW
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system.run_files import METRICS_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import RunState, parse_number
from drivetrain.tracking import run_description
from drivetrain.tracking.sent_rows import SentRows
from drivetrain.tracking.tracker import Row, Tracker

NO_METRICS = ("step", "epoch", "batch")
"""Of a row of metrics.jsonl."""


@contextlib.contextmanager
def open_tracker(run: Path, address: str, experiment: str | None = None, server: str = MLFLOW) -> Iterator[RunTracker]:
    """The copy of a run folder in an experiment of a server (the job's name if there is none), for this process alone.

    Raises:
        StorageError: if the run folder cannot be written.
        Busy: if another process copies this run.
    """
    target = address if server == MLFLOW else f"{server} {address}"
    files = RunFiles(run, f"tracker/{hashlib.sha256(target.encode()).hexdigest()[:8]}")
    with contextlib.closing(SentRows(files)) as ledger:
        name = experiment or str(read_stored_spec(run).data.get("name") or run.name)
        module = importlib.import_module(f"drivetrain.tracking.servers.{server}")
        yield RunTracker(run, module.connect(address, name, files), ledger)


class RunTracker:
    """A run folder, and its copy on one server."""

    def __init__(self, run: Path, tracker: Tracker, ledger: SentRows) -> None:
        self.run, self.tracker, self.ledger = run, tracker, ledger
        self.metrics = JsonLinesTail(RunFiles(run), METRICS_FILE)
        self.waiting: dict[str, Row] = {}
        """Rows that were read and not sent, by their keys in the ledger."""
        self.page = ""
        """The address of the copy, once it exists."""

    def read(self) -> None:
        """Look for new rows."""
        rows, is_rewritten = self.metrics.read()
        if is_rewritten:  # rows that a resume has removed are not sent
            self.waiting.clear()
        by_key = {hashlib.blake2b(json.dumps(row).encode(), digest_size=8).hexdigest(): row for row in rows}
        unsent = {key: row for key, row in by_key.items() if key not in self.ledger.sent}
        self.ledger.note_times(unsent)
        for key, row in unsent.items():
            if isinstance(step := row.get("step"), int) and (values := _select_metrics(row)):
                self.waiting[key] = Row(step, self.ledger.times[key], values)

    def send(self, deadline: float = math.inf) -> None:
        """Send the rows that wait, until a moment of time.monotonic().

        Raises:
            TrackerError: if the server refuses them or gives no answer; they go on waiting.
            StorageError: if the ledger cannot be written.
        """
        if not self.page:
            self.page = self.tracker.begin(run_description.describe_run(self.run))
        while self.waiting and time.monotonic() < deadline:
            batch = _take_batch(self.waiting, self.tracker.most)
            self.tracker.log([*batch.values()])
            self.ledger.confirm(batch)
            for key in batch:
                del self.waiting[key]

    def finish(self) -> str:
        """Send the plan as it became, the files and the status; returns what was not sent, and why.

        Raises:
            TrackerError: as `send`.
        """
        self.tracker.describe(run_description.collect_tags(self.run))
        state = RunState.read(self.run)
        ended = run_description.to_milliseconds(state.ended)
        return self.tracker.end(str(state.status), ended, run_description.read_contents(self.run))


def _select_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    numbers = ((name, parse_number(value)) for name, value in row.items() if name not in NO_METRICS)
    return {name: value for name, value in numbers if value is not None}


def _take_batch(rows: Mapping[str, Row], most: int) -> dict[str, Row]:
    """The first rows, with at most so many numbers together; one row at least."""
    batch: dict[str, Row] = {}
    for key, row in rows.items():
        most -= len(row.values)
        if batch and most < 0:
            break
        batch[key] = row
    return batch
