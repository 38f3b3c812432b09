"""A recommendation, and helpers with which its rule reads a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.report.formatting import format_share
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import parse_number

MIN_TIME_SHARE = 0.05
"""Share of the time that justifies a change."""
MIN_RUN_SECONDS = 20.0
"""Seconds; shorter runs get no advice."""


@dataclass(frozen=True)
class Advice:
    """One recommended change."""

    change: str
    why: str
    gain: str
    line: str
    """The line for the spec."""
    weight: float = 0.0
    """Seconds that it may save, among changes that save time; larger than any run time if the run itself is at risk."""


Rule = Callable[[Record, Summary], Iterator[Advice]]


def compute_time_share(seconds: float, summary: Summary) -> float:
    """Compute the share of the total time; 0 for a run that is too short."""
    total_seconds = summary.seconds or 0.0
    return seconds / total_seconds if total_seconds >= MIN_RUN_SECONDS else 0.0


def describe_saving(share: float) -> str:
    """Return the expected gain, as text."""
    return f"up to {format_share(share)} less time"


def is_turned_off(record: Record, name: str) -> bool:
    """Return whether the job itself turned the optimization off; a default that is off has a reason."""
    rows = record.plan.decisions if record.plan else ()
    return any(d.name == name and d.value in (False, "off") and d.source in ("job", "file") for d in rows)


def read_fact(record: Record, *keys: str) -> float | None:
    """Read a recorded fact about data or network; None for runs of earlier versions, which recorded text only."""
    return parse_number(get_nested(record.result, "facts", *keys))


def get_nested(spec: Mapping[str, object], *keys: str) -> object:
    """Return the value under nested keys; None if it is not there."""
    value: Any = spec
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
