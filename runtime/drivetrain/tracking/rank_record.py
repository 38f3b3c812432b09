"""Activity of each process of a run: rank 0 writes it to ranks.json, the live view and the report read it."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drivetrain.errors import StorageError
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import RANKS_FILE, RunFiles

MIN_SLOWDOWN = 1.15
"""So many times slower than the others is worth a word; less is noise."""


@dataclass(frozen=True)
class RankRecord:
    """One process of the present attempt. Times in seconds of training without evaluations, memory in bytes."""

    rank: int
    node: str = ""
    chip: str = ""
    """Its GPU, or the processor."""
    threads: int = 0
    """Threads with which it computes on the CPU."""
    samples: int = 0
    """Samples that it has trained on itself."""
    computing: float = 0.0
    data: float = 0.0
    """Waiting for data."""
    others: float = 0.0
    """Waiting for the other processes, and sending."""
    memory: int = 0
    """Resident memory of the process and its workers."""
    peak_memory: int = 0
    gpu_memory: int = 0
    """Largest memory of its tensors on a GPU; 0 on a CPU."""

    @property
    def seconds(self) -> float:
        """Time of training."""
        return self.computing + self.data + self.others

    @property
    def speed(self) -> float:
        """Samples per second that it would train if it never waited for others; 0 before the first step."""
        return self.samples / max(1e-9, self.computing + self.data)

    def share(self, seconds: float) -> float:
        """Return the share of some seconds in the time of training."""
        return seconds / max(1e-9, self.seconds)

    def subtract(self, before: RankRecord) -> RankRecord:
        """Return the record of the time since an earlier record of the same process."""
        lasted = {name: getattr(self, name) - getattr(before, name) for name in _SUMMED_FIELDS}
        return RankRecord(**asdict(self) | lasted)


_SUMMED_FIELDS = ("samples", "computing", "data", "others")
_PARSER = TypeAdapter(RankRecord)


def find_slowest(records: Sequence[RankRecord]) -> RankRecord | None:
    """Find the process for which the others wait; None if all are about equally fast, or nothing is known yet."""
    if len(records) < 2 or not all(record.samples > 0 for record in records):
        return None
    last = min(records, key=lambda record: record.speed)
    return last if compute_usual_speed(records, last) > MIN_SLOWDOWN * last.speed else None


def compute_usual_speed(records: Sequence[RankRecord], but: RankRecord) -> float:
    """Compute the median speed of all processes but one."""
    return statistics.median(record.speed for record in records if record.rank != but.rank)


def compute_exchange(records: Iterable[RankRecord]) -> float:
    """Share of the time that even the process with the shortest waits spends in the exchange: what that costs by itself."""
    return min((record.share(record.others) for record in records if record.seconds), default=0.0)


def record_to_text(record: RankRecord) -> str:
    """Return a record as the other processes get it."""
    return json.dumps(asdict(record))


def record_from_text(text: str) -> RankRecord | None:
    """Return the record of another process; None if there is none yet."""
    try:
        return _parse_record(parse_json(text))
    except ValueError:
        return None


def write_records(folder: Path, records: Iterable[RankRecord]) -> None:
    """Replace the file; a full disk may lose it, but must not affect the run."""
    with contextlib.suppress(StorageError):
        RunFiles(folder).write_text(RANKS_FILE, json.dumps([asdict(record) for record in records]))


def read_records(folder: Path) -> tuple[RankRecord, ...]:
    """Read the records of a run; empty if one process trained it alone."""
    document = RunFiles(folder).read_json(RANKS_FILE)
    records = map(_parse_record, document) if isinstance(document, list) else ()
    return tuple(record for record in records if record is not None)


def _parse_record(data: Any) -> RankRecord | None:
    if not isinstance(data, dict) or not isinstance(data.get("rank"), int):
        return None
    try:
        return _PARSER.validate_python(data)
    except ValidationError:
        return None
