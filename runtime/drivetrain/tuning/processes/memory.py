"""Measures memory by micro-batch with real steps, as a child of `drivetrain bench memory`.

It uses the search of `micro_batch: auto`, without and with recomputed blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.system.console import say
from drivetrain.system.files import blame_storage, write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning import assembly
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch


@dataclass(frozen=True)
class MemoryRow:
    """Memory of one micro-batch in bytes."""

    micro_batch: int
    recomputed: bool
    """Whether blocks save only their inputs."""
    measured: int | None
    """Measured peak; None if the size does not fit."""
    samples_per_second: float | None


def measure(call: MeasuringCall) -> None:
    """Measure and report the memory of all sizes."""
    inputs = assembly.load_assembly(call.folder, call.job, call.signals)
    call.store_plan(inputs.plan)
    ceiling, measured_rows = measure_sizes(MicroBatchSearch(inputs))
    report(measured_rows, ceiling, call.folder)


def measure_sizes(search: MicroBatchSearch) -> tuple[int, list[MemoryRow]]:
    """Measure the limit in bytes and all sizes: without and, if the network has several blocks, with recomputing."""
    rows, ceiling = list[MemoryRow](), 0
    for recompute in (False, True) if search.facts.blocks > 1 else (False,):
        sizes = search.prepare_search(recompute).search_sizes()
        ceiling = max(ceiling, sizes.ceiling)
        for trial in sorted(sizes.trials, key=lambda trial: trial.size):
            speed = round(trial.speed, 1) if trial.peak else None
            rows.append(MemoryRow(trial.size, recompute, trial.peak, speed))
    return ceiling, rows


def report(rows: Sequence[MemoryRow], ceiling: int, folder: Path) -> None:
    """Print a table; write memory.json.

    Raises:
        StorageError: if it cannot be written.
    """
    say(f"{'micro-batch':>11}  {'measured':>12}  {'samples/s':>10}  blocks")
    for row in rows:
        measured = format_bytes(row.measured) if row.measured else "does not fit"
        speed = f"{row.samples_per_second:.0f}" if row.samples_per_second else "-"
        blocks = "recomputed" if row.recomputed else "saved"
        say(f"{row.micro_batch:11}  {measured:>12}  {speed:>10}  {blocks}")
    say(f"{format_bytes(ceiling)} available")
    with blame_storage(folder):
        write_json(folder / "memory.json", {"ceiling": ceiling, "rows": [vars(row) for row in rows]})
    say(f"the numbers are in {folder}/memory.json")
