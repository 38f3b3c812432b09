"""Copies a run to a tracking server while it is trained, from the files of its folder: the server can only lag behind.

It runs in a process of its own beside the trainer (`tracker_process`), or after the run (`drivetrain track`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drivetrain.errors import SpecError
from drivetrain.job.track import MLFLOW, Track
from drivetrain.job_spec.yaml_file import parse
from drivetrain.system.files import parse_row
from drivetrain.system.run_files import HARDWARE_FILE, JOB_FILE, PLAN_FILE, RESULT_FILE, STATE_FILE, RunFiles
from drivetrain.system.version import VERSION
from drivetrain.tracking.sent_rows import RowReader, SentRows
from drivetrain.tracking.tracker import Row, RunDescription, Tracker, TrackerError

FILES = (
    JOB_FILE,
    PLAN_FILE,
    HARDWARE_FILE,
    "data.json",
    "events.jsonl",
    RESULT_FILE,
    "baselines.json",
    "provenance.json",
    "model-card.md",
    "report.html",
    "report.md",
    "report.json",
)
"""Of a run folder; its weights stay there."""
MIN_NUMBERS = 50
"""Numbers of a request that are sent to a server, however slow it is."""
QUICK_REQUEST_SECONDS = 1.0
"""Seconds of a request after which the next may have twice as many."""
OTHER = ("step", "epoch", "batch")
"""Of a row of metrics.jsonl, what is no metric."""


@contextlib.contextmanager
def open_tracker(run: Path, address: str, experiment: str | None = None, server: str = MLFLOW) -> Iterator[RunTracker]:
    """The copy of a run folder on a server, for this process alone.

    Args:
        run: the run folder.
        address: of the server.
        experiment: its name there; that of the job if None.
        server: the kind of server, which is a file in `servers`.

    Raises:
        StorageError: if the run folder cannot be written.
        Busy: if another process copies this run.
    """
    spec = _spec(run)
    mark = address if server == MLFLOW else f"{server} {address}"
    files = RunFiles(run, f"tracker/{hashlib.sha256(mark.encode()).hexdigest()[:8]}")
    rows = SentRows(files)
    try:
        name = experiment or str(spec.get("name") or run.name)
        kind = importlib.import_module(f"drivetrain.tracking.servers.{server}")
        yield RunTracker(run, kind.connect(address, name, files), rows)
    finally:
        rows.close()


def read_stored_track(run: Path) -> Track | None:
    """What the job of a run says about tracking."""
    spec = _spec(run).get("track")
    try:
        track = Track.model_validate(spec) if spec else None
    except ValidationError:
        return None
    return None if track is None or track.find_contradiction() else track


class RunTracker:
    """A run folder, and its copy on one server."""

    def __init__(self, run: Path, tracker: Tracker, sent: SentRows) -> None:
        self.run = run
        self.tracker = tracker
        self.sent = sent
        self.reader = RowReader(RunFiles(run))
        self.waiting: list[str] = []
        """Rows that were read and not sent."""
        self.page = ""
        """The address of the copy, once it exists."""
        self.most = tracker.most
        """Numbers of the next request: fewer for a server that did not answer in time."""

    def read(self) -> None:
        """Look for new rows."""
        lines = list(self.reader.new())
        if self.reader.from_beginning:  # rows that a resume has removed are not sent, and no row waits twice
            self.waiting.clear()
        self.waiting += self.sent.missing(lines)

    def send(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Send the rows that wait, as long as `go_on`.

        Raises:
            TrackerError: if the server refuses them or gives no answer; they go on waiting.
            StorageError: if the journal cannot be written.
        """
        if not self.page:
            self.page = self.tracker.begin(_description(self.run))
        while self.waiting and go_on():
            count = _fitting(self.waiting, min(self.most, self.tracker.most))
            chunk = self.waiting[:count]
            times = self.sent.note(chunk, time.time_ns() // 1_000_000)
            rows = list(_rows(chunk, times))
            if rows:
                self._log(rows)
            self.sent.confirm()
            del self.waiting[:count]

    def _log(self, rows: Sequence[Row]) -> None:
        begun = time.monotonic()
        try:
            self.tracker.log(rows)
        except TrackerError as error:
            if error.passing:
                # A server that takes longer for so many than we wait for an answer would never get further.
                self.most = max(MIN_NUMBERS, self.most // 2)
            raise
        if time.monotonic() - begun < QUICK_REQUEST_SECONDS:
            self.most = min(self.tracker.most, 2 * self.most)

    def finish(self) -> str:
        """Send the plan as it became, the files and the status; returns what was not sent, and why.

        Raises:
            TrackerError: as `send`.
        """
        self.tracker.describe(_tags(self.run))
        files = RunFiles(self.run)
        state = files.read_object(STATE_FILE)
        contents: dict[str, bytes] = {}
        for name in FILES:
            with contextlib.suppress(OSError):  # the run has no such file
                contents[name] = files.read_bytes(name)
        return self.tracker.end(str(state.get("status")), _milliseconds(state.get("ended")), contents)


def _fitting(lines: list[str], most: int) -> int:
    """How many of the first lines hold at most so many numbers; one at least."""
    numbers, count = 0, 0
    for line in lines:
        numbers += sum(name not in OTHER for name in parse_row(line) or {})
        if numbers > most and count:
            break
        count += 1
    return count


def _rows(lines: list[str], times: list[int]) -> Iterator[Row]:
    for line, milliseconds in zip(lines, times, strict=True):
        row = parse_row(line) or {}
        values = {
            name: float(value)
            for name, value in row.items()
            if name not in OTHER and isinstance(value, int | float) and not isinstance(value, bool)
        }
        if values and isinstance(row.get("step"), int):
            yield Row(int(str(row["step"])), milliseconds, values)


def _description(run: Path) -> RunDescription:
    state = RunFiles(run).read_object(STATE_FILE)
    started = _milliseconds(state.get("started")) or time.time_ns() // 1_000_000
    return RunDescription(run.name, started, dict(_flat(_spec(run))), _tags(run))


def _tags(run: Path) -> dict[str, str]:
    decisions = RunFiles(run).read_object(PLAN_FILE).get("decisions")
    plan = [decision for decision in decisions if isinstance(decision, dict)] if isinstance(decisions, list) else []
    hardware = RunFiles(run).read_object(HARDWARE_FILE)
    result = RunFiles(run).read_object(RESULT_FILE)
    best = _part(result, "best")
    return {
        **_list_origins(run),
        "drivetrain.version": VERSION,
        "hardware.cpu": str(_part(hardware, "cpu").get("model", "")),
        **({"best": f"{best.get('metric')} {best['value']:.6g} at step {best.get('step')}"} if _is_best(best) else {}),
        **{
            f"plan.{decision.get('name')}": f"{decision.get('value')} ({decision.get('source')}: {decision.get('reason')})"
            for decision in plan
        },
    }


def _list_origins(run: Path) -> dict[str, str]:
    """Commit, image, and digests of spec, plan, data and weights, as far as they are known yet."""
    commits = RunFiles(run).read_object(STATE_FILE).get("commits")
    provenance = RunFiles(run).read_object("provenance.json")
    image = _part(provenance, "image")
    origins = {
        "commit": commits[0] if isinstance(commits, list) and commits else None,
        "image": image.get("id") or image.get("name"),
        **{key: provenance.get(key) for key in ("spec", "plan", "model")},
        **_part(provenance, "data"),
    }
    return {f"made_from.{key}": str(value) for key, value in origins.items() if value}


def _part(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in a record; empty if there is none, as in a folder that somebody else wrote."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _is_best(best: Mapping[str, Any]) -> bool:
    return isinstance(best.get("value"), int | float) and math.isfinite(best["value"])


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every value of the spec by its dotted key, without those that are not set."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{above}{key}.")
        elif item is not None:
            yield f"{above}{key}", item if isinstance(item, str) else json.dumps(item)


def _spec(run: Path) -> Mapping[str, Any]:
    try:
        return parse(RunFiles(run).read_text(JOB_FILE), JOB_FILE).data
    except (OSError, ValueError, SpecError):
        return {}


def _milliseconds(text: object) -> int | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
