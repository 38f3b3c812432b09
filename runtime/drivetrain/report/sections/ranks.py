"""What each process of a run did, if several trained together, and which one the others waited for."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.report.blocks import Section, Table, Text, Tone
from drivetrain.report.formatting import format_json, number, share
from drivetrain.system.units import format_bytes
from drivetrain.tracking.rank_record import RankRecord, compute_exchange, compute_usual_speed, find_slowest

MAX_ROWS = 64
"""Largest number of rows."""


def ranks_section(records: Sequence[RankRecord]) -> Section | None:
    """The processes as a table, the slowest first if there are too many."""
    if len(records) < 2:
        return None
    last = find_slowest(records)
    listed = records if len(records) <= MAX_ROWS else sorted(records, key=lambda record: record.speed)[:MAX_ROWS]
    columns = ("rank", "node", "computes on", "samples", "samples/s of its own", "computing", "waiting for data")
    table = Table(
        (*columns, "waiting for others, sending", "peak memory"),
        tuple(_row(record) for record in listed),
        {row: Tone.WARN for row, record in enumerate(listed) if record is last},
    )
    omission = f" The {MAX_ROWS} slowest of {len(records)} are listed." if len(records) > MAX_ROWS else ""
    about = (
        f"Of the last attempt, without evaluations. Even the process that waits least spent {share(compute_exchange(records))} "
        f"of its time sending and waiting for others.{omission}"
    )
    return Section("ranks", "Processes", (Text(words(records), Tone.WARN if last else Tone.GOOD), table, Text(about)))


def words(records: Sequence[RankRecord]) -> str:
    """Which process is the slowest, and why."""
    last = find_slowest(records)
    if last is None:
        return "All processes were about equally fast."
    reason = (
        f", mostly because it waited for data ({share(last.share(last.data))} of its time)" if starves(last) else ""
    )
    return (
        f"Rank {last.rank} on {format_json(last.node)} is the slowest, and the others waited for it: it trains "
        f"{number(last.speed)} samples/s of its own, the others {number(compute_usual_speed(records, last))}{reason}."
    )


def starves(record: RankRecord) -> bool:
    """Whether a process waits for data longer than it computes."""
    return record.data > record.computing


def _row(record: RankRecord) -> tuple[str, ...]:
    memory = format_bytes(record.peak_memory) + (
        f", GPU {format_bytes(record.gpu_memory)}" if record.gpu_memory else ""
    )
    return (
        str(record.rank),
        format_json(record.node),
        f"{format_json(record.chip)}, {record.threads} {'thread' if record.threads == 1 else 'threads'}",
        number(record.samples),
        number(record.speed),
        *(share(record.share(part)) for part in (record.computing, record.data, record.others)),
        memory,
    )
