"""Reader of state.json and result.json of a run folder, for all commands: a value of another type counts as missing.

The files may be missing, cut off by a kill, written by another version, or by somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.system.run_files import RESULT_FILE, STATE_FILE, RunFiles

T = TypeVar("T")
Record = Mapping[str, Any]


class RunState:
    """How a run stands, as its supervisor recorded it last: from the content of a state.json."""

    def __init__(self, record: Record) -> None:
        self.status = _read(record, "status", str)
        """running, done, stopped or failed; None if none is recorded."""
        self.exit_code = read_integer(record, "exit_code")
        self.source = _read(record, "source", str) or ""
        """The job file, or the program that trains."""
        self.started, self.ended = _read_moment(record, "started"), _read_moment(record, "ended")
        self.attempts = read_integer(record, "attempts") or 0
        self.key = _read(record, "key", str) or ""
        """By which a tracking server knows all attempts of this run."""
        self.commits = tuple(map(str, _read(record, "commits", list) or ()))
        """Of the folder of the job, as the attempts began."""
        self.plain = _read(record, "plain", bool)
        """Whether the run was started with --plain; None if state.json is damaged."""
        self.plan = _read(record, "plan", dict)
        """The values of --plan FILE; None without it."""

    @classmethod
    def read(cls, run: Path) -> RunState:
        """Read the state of a run folder."""
        return cls(RunFiles(run).read_object(STATE_FILE))


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric."""

    metric: str
    value: float
    step: int | None
    epoch: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the evaluation that gave it, the metrics of the model; empty if they were not recorded."""


class RunResult:
    """How a run ended, as its trainer recorded it: from the content of a result.json."""

    def __init__(self, record: Record) -> None:
        best, value = read_mapping(record, "best"), read_number(read_mapping(record, "best"), "value")
        self.best: Best | None = None
        if value is not None:
            step, epoch, metrics = read_integer(best, "step"), read_number(best, "epoch"), read_numbers(best, "metrics")
            self.best = Best(str(best.get("metric")), value, step, epoch, metrics)
        self.test = read_numbers(read_mapping(record, "test"), "metrics")
        """Metrics of the final test; empty if there was none."""
        self.epochs, self.seconds = read_number(record, "epochs"), read_number(record, "seconds")
        self.within_seconds = read_number(record, "within_seconds")
        """Seconds of `train.within` that were used when the result was written; None without `train.within`."""
        self.attempt = read_integer(record, "attempt")
        """Attempt of the run that trained to the end, as counted in state.json; None if it is not recorded."""

    @classmethod
    def read(cls, run: Path) -> RunResult:
        """Read the result of a run folder."""
        return cls(RunFiles(run).read_object(RESULT_FILE))


def read_mapping(record: Record, key: str) -> Record:
    """Read the object of this name in a record; empty if there is none."""
    return _read(record, key, dict) or {}


def read_objects(record: Record, key: str) -> list[Record]:
    """Read the objects in the list of this name in a record; empty if there is none."""
    rows = record.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list | tuple) else []


def read_number(record: Record, key: str) -> float | None:
    """Read a finite number of a record; None if there is none."""
    value = parse_number(record.get(key))
    return value if value is not None and math.isfinite(value) else None


def read_integer(record: Record, key: str) -> int | None:
    """Read a finite number of a record without its fraction; None if there is none."""
    value = read_number(record, key)
    return None if value is None else int(value)


def read_numbers(record: Record, key: str) -> dict[str, float]:
    """Read the finite numbers of an object in a record, by name."""
    numbers = read_mapping(record, key)
    values = {name: read_number(numbers, name) for name in numbers}
    return {name: value for name, value in values.items() if value is not None}


def parse_number(value: object) -> float | None:
    """Parse a value as a number; infinity for one that is too large, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _read(record: Record, key: str, kind: type[T]) -> T | None:
    value = record.get(key)
    return value if isinstance(value, kind) else None


def _read_moment(record: Record, key: str) -> datetime | None:
    try:
        return datetime.fromisoformat(str(record.get(key))).astimezone()
    except (ValueError, OverflowError):
        return None
