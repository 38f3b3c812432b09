"""What each process of a run did, if several trained together, and which one the others waited for."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.report.blocks import Section, Table, Text, Tone
from drivetrain.report.formatting import format_json, format_number, format_share
from drivetrain.system.units import format_bytes
from drivetrain.tracking.rank_record import RankRecord, compute_exchange, compute_usual_speed, find_slowest

MAX_ROWS = 64
"""Largest number of rows."""


def ranks_section(records: Sequence[RankRecord]) -> Section | None:
    """The processes as a table, the slowest first if there are too many."""
    if len(records) < 2:
        return None
    slowest_rank = find_slowest(records)
    shown_records = records if len(records) <= MAX_ROWS else sorted(records, key=lambda record: record.speed)[:MAX_ROWS]
    columns = ("rank", "node", "computes on", "samples", "samples/s of its own", "computing", "waiting for data")
    table = Table(
        (*columns, "waiting for others, sending", "peak memory"),
        tuple(_format_row(record) for record in shown_records),
        {row: Tone.WARN for row, record in enumerate(shown_records) if record is slowest_rank},
    )
    omission = f" The {MAX_ROWS} slowest of {len(records)} are listed." if len(records) > MAX_ROWS else ""
    description = (
        f"Of the last attempt, without evaluations. Even the process that waits least spent {format_share(compute_exchange(records))} "
        f"of its time sending and waiting for others.{omission}"
    )
    verdict = Text(describe_slowest(records), Tone.WARN if slowest_rank else Tone.GOOD)
    return Section("ranks", "Processes", (verdict, table, Text(description)))


def describe_slowest(records: Sequence[RankRecord]) -> str:
    """Which process is the slowest, and why."""
    slowest_rank = find_slowest(records)
    if slowest_rank is None:
        return "All processes were about equally fast."
    waiting = format_share(slowest_rank.share(slowest_rank.data))
    reason = f", mostly because it waited for data ({waiting} of its time)" if waits_for_data(slowest_rank) else ""
    return (
        f"Rank {slowest_rank.rank} on {format_json(slowest_rank.node)} is the slowest, and the others waited for it: it trains "
        f"{format_number(slowest_rank.speed)} samples/s of its own, the others {format_number(compute_usual_speed(records, slowest_rank))}{reason}."
    )


def waits_for_data(record: RankRecord) -> bool:
    """Whether a process waits for data longer than it computes."""
    return record.data > record.computing


def _format_row(record: RankRecord) -> tuple[str, ...]:
    gpu_memory = f", GPU {format_bytes(record.gpu_memory)}" if record.gpu_memory else ""
    memory = format_bytes(record.peak_memory) + gpu_memory
    return (
        str(record.rank),
        format_json(record.node),
        f"{format_json(record.chip)}, {record.threads} {'thread' if record.threads == 1 else 'threads'}",
        format_number(record.samples),
        format_number(record.speed),
        *(format_share(record.share(part)) for part in (record.computing, record.data, record.others)),
        memory,
    )
