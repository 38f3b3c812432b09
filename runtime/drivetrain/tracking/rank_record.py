"""Activity of each process of a run, which rank 0 writes to ranks.json for the live view and the report."""

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
"""How many times slower than the others a process must be to be reported; less is noise."""


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
        """Sum the seconds of training."""
        return self.computing + self.data + self.others

    @property
    def speed(self) -> float:
        """Compute the samples per second without waiting for others; 0 before the first step."""
        return self.samples / max(1e-9, self.computing + self.data)

    def share(self, seconds: float) -> float:
        """Return seconds as a share of the training time."""
        return seconds / max(1e-9, self.seconds)

    def subtract(self, earlier: RankRecord) -> RankRecord:
        """Return the record of the time since an earlier record of the same process."""
        increases = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMMED_FIELDS}
        return RankRecord(**asdict(self) | increases)


_SUMMED_FIELDS = ("samples", "computing", "data", "others")
_PARSER = TypeAdapter(RankRecord)


def find_slowest(records: Sequence[RankRecord]) -> RankRecord | None:
    """Find the slowest process; None if all are about equally fast, or before the first step."""
    if len(records) < 2 or not all(record.samples > 0 for record in records):
        return None
    last = min(records, key=lambda record: record.speed)
    return last if compute_usual_speed(records, last) > MIN_SLOWDOWN * last.speed else None


def compute_usual_speed(records: Sequence[RankRecord], but: RankRecord) -> float:
    """Compute the median speed of all processes but one."""
    return statistics.median(record.speed for record in records if record.rank != but.rank)


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
