"""Measures batch sizes for `train.batch_size: auto`, as a child of `drivetrain train`: real steps on whole batches.

The size is doubled as long as it fits and one of the last two was faster. Then all sizes are timed once more.
"""

from __future__ import annotations

from drivetrain.errors import OutOfMemory
from drivetrain.plan import evidence
from drivetrain.system.units import format_bytes as readable
from drivetrain.tuning import assembly, batch_size
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.memory.size_search import SizeSearch


def measure(call: MeasuringCall) -> None:
    """Measure the sizes, and store their speeds and the choice."""
    inputs = assembly.load_assembly(call.folder, call.job, call.signals)
    call.store_plan(inputs.plan)
    search = MicroBatchSearch(inputs).prepare_search(inputs.plan.value("gradient_checkpointing") is True)
    speeds, ceiling = measure_sizes(search, batch_size.find_largest_size(len(inputs.dataset.train)))
    best = batch_size.choose_size(speeds)
    call.store(
        {
            "batch_size": best,
            "date": evidence.format_date(),
            "samples_per_second": speeds,
            "text": describe(speeds, best, ceiling),
        }
    )


def measure_sizes(search: SizeSearch, max_size: int) -> tuple[dict[int, float], int]:
    """Measure the samples per second of every size that fits, and the memory limit in bytes.

    Raises:
        OutOfMemory: if the smallest size does not fit.
    """
    search.meter.reset_peak()
    ceiling, size = search.compute_limit(), min(batch_size.MIN_SIZE, max_size)
    speeds: dict[int, float] = {}
    while batch_size.still_gains(speeds):
        search.use_size(size)
        if search.measure_peak(size, ceiling)[0] is None:
            break
        speeds |= search.measure_speeds([size])
        if size == max_size:
            break
        size = min(2 * size, max_size)
    if not speeds:
        raise OutOfMemory(
            f"train.batch_size: auto: even {size} samples do not fit into memory",
            f"{readable(ceiling)} available",
            "set a number, and optimize.micro_batch: auto",
        )
    for size in speeds:  # once more, because noise may have hit only one of the sizes
        search.use_size(size)
        speeds[size] = max(speeds[size], *search.measure_speeds([size]).values())
    return speeds, ceiling


def describe(speeds: dict[int, float], best: int, ceiling: int) -> str:
    """Describe the choice and its numbers."""
    rows = ", ".join(f"{size}: {speed:.0f}" for size, speed in speeds.items())
    return f"{best}, the smallest within 5 % of the fastest; samples/s: {rows}; {readable(ceiling)} available"
