"""Measures memory by micro-batch with real steps, as a child of `drivetrain memory`, with and without recomputed
blocks.

It uses the search of `micro_batch: auto`, so no step is started that would reach the limit. Sizes that do not fit are
listed with their predicted peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.system.console import say
from drivetrain.system.files import blame_storage, write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning import assembly
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.memory.size_search import SizeSearchResult


@dataclass(frozen=True)
class MemoryRow:
    """One micro-batch; memory in bytes."""

    micro_batch: int
    recomputed: bool
    """Whether blocks save only their inputs."""
    predicted: int | None
    """Peak predicted from the previous size; None for the first size."""
    measured: int | None
    """Measured peak; None if the size does not fit."""
    samples_per_second: float | None


def measure(call: MeasuringCall) -> None:
    """Measure and report the memory of all sizes."""
    ceiling, measured_rows = measure_sizes(
        MicroBatchSearch(assembly.load_assembly(call.folder, call.job, call.signals))
    )
    report(measured_rows, ceiling, call.folder)


def measure_sizes(search: MicroBatchSearch) -> tuple[int, list[MemoryRow]]:
    """Measure the limit in bytes and all sizes, without and then with recomputed blocks if the network has blocks."""
    rows, ceiling = list[MemoryRow](), 0
    for recompute in (False, True) if search.facts.blocks > 1 else (False,):
        size_search = search.prepare_search(recompute)
        sizes = size_search.search_sizes()
        ceiling = max(ceiling, sizes.ceiling)
        rows += [
            MemoryRow(t.size, recompute, t.predicted, t.peak, round(t.speed, 1) if t.peak else None)
            for t in sizes.trials
        ]
        rows += _predict_larger_sizes(sizes, size_search.batch_size)
        del size_search
    return ceiling, rows


def _predict_larger_sizes(sizes: SizeSearchResult, batch: int) -> Iterator[MemoryRow]:
    """Predict the peaks of sizes that were not tried, doubling up to the batch."""
    count, peak = min(2 * sizes.largest, batch), sizes.next_peak
    while sizes.largest and count > sizes.largest:
        yield MemoryRow(count, sizes.recompute, peak, None, None)
        if count == batch:
            return
        next_count = min(2 * count, batch)
        peak = sizes.held + (peak - sizes.held) * next_count // count
        count = next_count


def report(rows: Sequence[MemoryRow], ceiling: int, folder: Path) -> None:
    """Print a table; write memory.json.

    Raises:
        StorageError: if it cannot be written.
    """
    for line in _render_table(rows):
        say(line)
    say(f"{format_bytes(ceiling)} available")
    with blame_storage(folder):
        write_json(folder / "memory.json", {"ceiling": ceiling, "rows": [vars(row) for row in rows]})
    say(f"the numbers are in {folder}/memory.json")


def _name(recomputed: bool) -> str:
    return "blocks recomputed" if recomputed else "as it is"


def _render_table(rows: Sequence[MemoryRow]) -> Iterator[str]:
    yield f"{'micro-batch':>11}  {'predicted':>10}  {'measured':>12}  {'samples/s':>10}  blocks"
    for row in rows:
        predicted = format_bytes(row.predicted) if row.predicted else "-"
        measured = format_bytes(row.measured) if row.measured else "does not fit"
        speed = f"{row.samples_per_second:.0f}" if row.samples_per_second else "-"
        yield f"{row.micro_batch:11}  {predicted:>10}  {measured:>12}  {speed:>10}  {_name(row.recomputed)}"
