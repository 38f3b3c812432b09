"""Chooses the batch size for `train.batch_size: auto` from measured speeds, without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from drivetrain.distributed import world
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.train import USUAL_BATCH
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan as plans
from drivetrain.system.console import say
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import BATCH_SIZE_FILE, RunFiles
from drivetrain.tracking.event_log import EventLog
from drivetrain.tuning import measuring_child

MIN_SIZE, MAX_SIZE = 8, 4096
"""Smallest and largest size to try; each size is twice the one before."""
MIN_STEPS_PER_EPOCH = 20
"""Smallest number of steps per epoch."""
MIN_SPEEDUP = 1.05
"""Factor in speed that a larger batch must gain."""


def refuse_auto(job: Job, command: str) -> None:
    """Refuse `auto` for commands that do not measure it.

    Raises:
        SpecError: if the batch size is `auto`; says which commands measure it.
    """
    if job.train.batch_size == "auto":
        raise job.spec_error(
            ("train", "batch_size"),
            f"is auto, which {command} cannot measure",
            "a number; auto is measured by `drivetrain train` in one process",
            "set it to a number",
        )


def measure_once(
    source: SpecSource, job: Job, machine: Hardware, folder: Path, *, plain: bool = False
) -> dict[str, int]:
    """Measure the batch size if it is `auto`, once per run; returns `batch_size` if it was measured.

    Args:
        folder: run folder, which stores the result.
        plain: whether all optimizations of the run are off.

    Raises:
        SpecError: if the run has several processes.
        MeasurementEnded: if the measurement failed.
        Stopped: if a signal arrived during the measurement.
    """
    if job.train.batch_size != "auto":
        return {}
    path = folder / BATCH_SIZE_FILE
    measurement = read_json(path)
    if measurement is None:
        if world.count_local_ranks(job, machine) > 1:
            refuse_auto(job, "a run of several processes")
        plan = plans.resolve(job, machine, plain=plain)
        say("batch_size: measured, since train.batch_size is auto")
        source_with_size = replace(source, measured={"batch_size": MIN_SIZE})
        events = EventLog(folder)
        measurement = measuring_child.measure_result("batch_size", source_with_size, plan, machine, events)
        write_json(path, measurement)
        events.add("batch_size", f"{measurement['text']}. {describe_learning_rate(job, measurement['batch_size'])}")
    return {"batch_size": int(measurement["batch_size"])}


def read_measured(run: Path, job: Job) -> dict[str, int]:
    """Read the batch size that a run has measured, as `{"batch_size": 64}`; empty if its job does not measure it, or not yet."""
    if job.train.batch_size != "auto":
        return {}
    size = RunFiles(run).read_object(BATCH_SIZE_FILE).get("batch_size")
    return {"batch_size": size} if isinstance(size, int) else {}


def pin_measured(job: Job, runs: Iterable[Path]) -> tuple[str, ...]:
    """Return the `--set` value for the first batch size that another run of the same command has measured, if any."""
    for run in runs:
        measured = read_measured(run, job)
        if measured:
            return (f"train.batch_size={measured['batch_size']}",)
    return ()


def find_largest_size(samples: int) -> int:
    """Find the largest batch size to try for a number of training samples: MIN_SIZE, doubled repeatedly."""
    doublings = max(1, samples // MIN_STEPS_PER_EPOCH // MIN_SIZE).bit_length() - 1
    return min(MAX_SIZE, MIN_SIZE << doublings, samples)


def choose_size(speeds: Mapping[int, float]) -> int:
    """Choose the smallest size within 5 % of the fastest; a larger batch would mean fewer updates at the same speed.

    `speeds` are samples per second by size.
    """
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed * MIN_SPEEDUP >= best)


def still_gains(speeds: Mapping[int, float]) -> bool:
    """Return whether one of the last two doublings was faster; then the next one may be faster too."""
    last_speeds = list(speeds.values())[-3:]
    return len(last_speeds) < 3 or max(last_speeds[1:]) >= MIN_SPEEDUP * last_speeds[0]


def describe_learning_rate(job: Job, size: int) -> str:
    """Describe how the learning rate would scale to a batch size; the rate itself is not changed."""
    optimizer = job.train.optimizer
    rate, ratio = optimizer.lr, size / USUAL_BATCH
    rule, factor = ("linear", ratio) if optimizer.scales_linearly else ("square-root", ratio**0.5)
    return (
        f"train.optimizer.lr stays {rate:g}; if it was chosen for batches of {USUAL_BATCH}, the {rule} rule would "
        f"make it {rate * factor:.3g} (drivetrain bench lr JOB --set train.batch_size={size} measures it)"
    )
