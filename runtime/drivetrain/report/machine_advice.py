"""Rules about the cost of a run: a CPU quota, waiting for data, checkpoints, a GPU that is idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.report.formatting import format_duration, format_share
from drivetrain.report.log_series import Series
from drivetrain.report.record import Record, Summary

MIN_TIME_SHARE = 0.05
"""Share of the time that justifies a change."""
MIN_RUN_SECONDS = 20.0
"""Seconds; shorter runs get no advice about their cost."""
COMPILE_PAYS_SECONDS = 300.0
"""Seconds of training from which compiling, which takes up to a minute, can pay."""


@dataclass(frozen=True)
class Advice:
    """One recommended change."""

    change: str
    why: str
    gain: str
    line: str
    """The line for the job file, or a command."""
    weight: float = 0.0
    """Seconds that it may save, among changes that save time."""


def get_nested(spec: Mapping[str, object], *keys: str) -> object:
    """Return the value under nested keys; None if it is not there."""
    value: Any = spec
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def list_machine_advice(record: Record, summary: Summary) -> list[Advice]:
    """List changes that save time, the most helpful first; none for a short run."""
    if (summary.seconds or 0.0) < MIN_RUN_SECONDS:
        return []
    rules = (_advise_on_throttling, _advise_on_idle_gpu, _advise_on_waiting, _advise_on_saving)
    return sorted((advice for rule in rules for advice in rule(record, summary)), key=lambda advice: -advice.weight)


def _compute_time_share(seconds: float, summary: Summary) -> float:
    return seconds / summary.seconds if summary.seconds else 0.0


def _describe_saving(share: float) -> str:
    return f"up to {format_share(share)} less time"


def _advise_on_throttling(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the CPU quota throttled the run."""
    throttled = record.telemetry.get("throttled_seconds", Series("")).accumulate("throttled")
    seconds = throttled.ys[-1] if throttled else 0.0
    hardware, threads = record.hardware, record.settings.get("cpu_threads")
    quota, share = hardware.cpu.quota if hardware else None, _compute_time_share(seconds, summary)
    if quota is None or hardware is None or share < MIN_TIME_SHARE:
        return
    allowed = max(1, int(quota))
    if isinstance(threads, int) and threads > allowed:
        name, line = "use only as many threads as the CPU quota allows", f"optimize: {{cpu_threads: {allowed}}}"
    elif allowed < hardware.cpu.host:
        name, line = "raise the CPU quota", f"limits: {{cpus: {allowed + 1}}}"
    else:
        return
    reason = (
        f"the quota of {quota:g} CPUs throttled it for {format_duration(seconds)} of {format_duration(summary.seconds)}"
    )
    yield Advice(name, reason, _describe_saving(min(0.9, share)), line, min(seconds, summary.seconds or 0.0))


def _advise_on_idle_gpu(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the GPU was idle for a tenth of the time or more."""
    busy = record.telemetry.get("gpu_percent")
    if not busy or len(busy) < 10:
        return
    idle_share = 1 - sum(busy.ys) / len(busy) / 100
    seconds = idle_share * summary.phases.get("train", 0.0)
    if idle_share < 0.1 or summary.phases.get("input", 0.0) > seconds / 2:
        return
    gain = _describe_saving(_compute_time_share(seconds, summary))
    reason = f"the GPU was idle for {format_share(idle_share)} of the time"
    rows = record.plan.decisions if record.plan else ()
    compiles_unmeasured = any(d.name == "compile" and d.value is False and d.source == "choice" for d in rows)
    if summary.phases.get("train", 0.0) >= COMPILE_PAYS_SECONDS and compiles_unmeasured:
        change = "measure compiled kernels and CUDA graphs, which leave less work to the host"
        yield Advice(change, reason, gain, "optimize: {measure: full}", seconds)
    elif get_nested(record.spec, "train", "batch_size") != "auto":
        change = "use larger batches, which need fewer kernels per sample; they change what is learned"
        yield Advice(change, reason, gain, "train: {batch_size: auto}", seconds)


def _advise_on_waiting(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the network waited for batches."""
    seconds = summary.phases.get("input", 0.0)
    waiting_share, hardware = _compute_time_share(seconds, summary), record.hardware
    if waiting_share < MIN_TIME_SHARE or hardware is None:
        return
    workers = record.settings.get("loader_workers")
    spare_cpus, saved_share = hardware.cpu.budget - 1, waiting_share
    rows = record.plan.decisions if record.plan else ()
    # A cache that the run itself left out had a reason.
    if any(d.name == "decode_cache" and d.value is False and d.source in ("job", "file") for d in rows):
        name, line = "cache decoded samples", "optimize: {decode_cache: true}"
    elif isinstance(workers, int) and workers < spare_cpus:
        count = min(16, max(1, spare_cpus))
        name, line = "load data in worker processes", f"optimize: {{loader_workers: {count}}}"
        # At best, loading and training overlap completely, and the longer of the two remains.
        saved_share = 1 - max(1 - waiting_share, waiting_share / count)
    elif hardware.cpu.budget < hardware.cpu.host:
        name, line = "add a CPU for loading data", f"limits: {{cpus: {hardware.cpu.budget + 1}}}"
    else:
        return
    reason = f"training waited {format_duration(seconds)} for data"
    yield Advice(name, reason, _describe_saving(saved_share), line, seconds)


def _advise_on_saving(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether checkpoints took a large share of the time."""
    seconds = summary.phases.get("checkpoint", 0.0)
    saving_share = _compute_time_share(seconds, summary)
    every = get_nested(record.spec, "checkpoint", "every")
    if saving_share >= MIN_TIME_SHARE and every not in (None, "15m"):
        reason = f"checkpoints every {every} took {format_duration(seconds)}"
        gain = _describe_saving(saving_share)
        yield Advice("save checkpoints less often", reason, gain, "checkpoint: {every: 15m}", seconds)
