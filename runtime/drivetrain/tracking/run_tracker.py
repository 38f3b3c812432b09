"""Copies a run to a tracking server from the files of its folder, so that the server can only lag behind."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import Busy
from drivetrain.job.track import MLFLOW
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import file_lock, run_files
from drivetrain.system.files import blame_storage
from drivetrain.system.run_files import METRICS_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import RunResult, RunState, parse_number, read_mapping, read_objects
from drivetrain.system.version import VERSION
from drivetrain.tracking.tracker import Row, RunDescription, Tracker

NO_METRICS = ("step", "epoch", "batch")
"""Of a row of metrics.jsonl."""


SENT_FILES = (
    *(run_files.JOB_FILE, run_files.PLAN_FILE, run_files.HARDWARE_FILE, run_files.RESULT_FILE, run_files.DATA_FILE),
    *(run_files.EVENTS_FILE, run_files.BASELINES_FILE, run_files.PROVENANCE_FILE, run_files.MODEL_CARD_FILE),
    *run_files.REPORT_FILES,
)
"""What the server gets of the folder at the end; the weights stay there."""
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
        lock = file_lock.acquire("lock", LOCK_SECONDS, files.open_handle)
    if lock is None:
        raise Busy(
            f"{run}: another process copies this run to the same server",
            "one process for each run and server",
            "wait until the run or the other command has ended",
        )
    try:
        name = experiment or str(read_stored_spec(run).data.get("name") or run.name)
        module = importlib.import_module(f"drivetrain.tracking.servers.{server}")
        yield RunTracker(run, module.connect(address, name, files), files)
    finally:
        os.close(lock)


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
            if key not in self.sent and isinstance(step := row.get("step"), int) and (values := _select_metrics(row)):
                self.waiting[key] = Row(step, self.times[key], values)

    def send(self, deadline: float = math.inf) -> None:
        """Send the rows that wait, until a moment of time.monotonic().

        Raises:
            TrackerError: if the server refuses them or gives no answer; they go on waiting.
            StorageError: if the ledger cannot be written.
        """
        if not self.page:
            self.page = self.tracker.begin(describe_run(self.run))
        while self.waiting and time.monotonic() < deadline:
            batch = _take_batch(self.waiting, self.tracker.most)
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
        state, contents = RunState.read(self.run), dict[str, bytes]()
        for name in SENT_FILES:
            with contextlib.suppress(OSError):  # the run has no such file
                contents[name] = RunFiles(self.run).read_bytes(name)
        return self.tracker.end(str(state.status), _to_milliseconds(state.ended), contents)

    def _record(self, entry: dict[str, object]) -> None:
        with blame_storage(self.files.path / LEDGER), self.files.open(LEDGER, "a") as file:
            file.write(f"\n{json.dumps(entry)}\n")  # an entry that a crash has cut off ends before this one
            file.flush()
            os.fsync(file.fileno())


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


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Nested data as one mapping with dotted keys."""
    if not isinstance(value, Mapping):
        return {path: value}
    flattened: dict[str, object] = {}
    for key, item in value.items():
        flattened |= flatten(item, f"{path}.{key}" if path else str(key))
    return flattened


def describe_run(run: Path) -> RunDescription:
    """Its name, start, parameters and tags."""
    started = _to_milliseconds(RunState.read(run).started) or time.time_ns() // 1_000_000
    values = {key: value for key, value in flatten(read_stored_spec(run).data).items() if value is not None}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return RunDescription(run.name, started, texts, collect_tags(run))


def _to_milliseconds(moment: datetime | None) -> int | None:
    """A moment in milliseconds since 1970."""
    return None if moment is None else int(moment.timestamp() * 1000)


def collect_tags(run: Path) -> dict[str, str]:
    """What a run was made from, its plan and its best value, as far as they are known yet."""
    files = RunFiles(run)
    provenance = files.read_object(run_files.PROVENANCE_FILE)
    image = read_mapping(provenance, "image")
    origins = {
        "commit": next(iter(RunState.read(run).commits), None),
        "image": image.get("id") or image.get("name"),
        **{key: provenance.get(key) for key in ("spec", "plan", "model")},
        **read_mapping(provenance, "data"),
    }
    tags = {f"made_from.{key}": str(value) for key, value in origins.items() if value}
    tags["drivetrain.version"] = VERSION
    tags["hardware.cpu"] = str(read_mapping(files.read_object(run_files.HARDWARE_FILE), "cpu").get("model", ""))
    if best := RunResult.read(run).best:
        tags["best"] = f"{best.metric} {best.value:.6g} at step {best.step}"
    for row in read_objects(files.read_object(run_files.PLAN_FILE), "decisions"):
        tags[f"plan.{row.get('name')}"] = f"{row.get('value')} ({row.get('source')}: {row.get('reason')})"
    return tags
