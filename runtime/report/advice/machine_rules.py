"""Rules about the machine and its limits: CPU quota, other processes, memory, an idle or a hot GPU."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.report.advice.recommendation import SHARE, SHORT, Advice, Rule, at, decided, less_time, time_share
from runtime.report.cpu_starvation import starved
from runtime.report.formatting import duration, share
from runtime.report.log_series import Series
from runtime.report.record import Record
from runtime.report.summary import Summary
from runtime.system.units import format_bytes

TIGHT, LOOSE = 0.9, 0.4
"""Shares of the memory limit that are too much, and needlessly little."""
CROWDED = 0.1
"""Share of the CPU time used by others that justifies advice."""
FULL = 0.4
"""Share from which on it matters that threads wait for each other."""
HOT = 80
"""Degrees Celsius from which on most GPUs reduce their clock."""
PAYS = 300.0
"""Seconds of training from which compiling, which takes up to a minute, can pay."""
MIB = 2**20


def _throttled(record: Record, summary: Summary) -> Iterator[Advice]:
    """The CPU quota throttled the run."""
    held = record.telemetry.get("throttled_seconds", Series("")).risen("throttled")
    seconds = held.ys[-1] if held else 0.0
    hardware, threads = record.hardware, decided(record).get("cpu_threads")
    quota = hardware.cpu.quota if hardware else None
    if quota is None or hardware is None or time_share(seconds, summary) < SHARE:
        return
    allowed = max(1, int(quota))
    if isinstance(threads, int) and threads > allowed:
        name, line = "use only as many threads as the CPU quota allows", f"optimize: {{cpu_threads: {allowed}}}"
    elif allowed < hardware.cpu.host:
        name, line = "raise the CPU quota", f"limits: {{cpus: {allowed + 1}}}"
    else:
        return
    yield Advice(
        name,
        f"the quota of {quota:g} CPUs throttled it for {duration(seconds)} of {duration(summary.seconds)}",
        less_time(min(0.9, time_share(seconds, summary))),
        line,
        min(seconds, summary.seconds or 0.0),
    )


def _crowded(record: Record, summary: Summary) -> Iterator[Advice]:
    """Other processes used the CPUs that this run may use."""
    found = starved(record.telemetry, record.hardware)
    lost = max(found.others_share, found.stolen_share) if found else 0.0
    if found is None or lost < CROWDED or (summary.seconds or 0.0) < SHORT:
        return
    who = "other processes" if found.others_share >= found.stolen_share else "other virtual machines"
    threads = decided(record).get("cpu_threads")
    waits = isinstance(threads, int) and threads > 1 and lost >= FULL
    if waits and who == "other processes":
        yield Advice(
            "compute with one thread beside them",
            f"{who} used {share(lost)} of the CPU time, and each of {threads} threads waits until all of them had a CPU",
            "beside four busy processes on 2 CPUs one thread trained 1.7 to 8.7 times as fast as two",
            "optimize: {cpu_threads: 1}",
            lost * (summary.seconds or 0.0),
        )
    yield Advice(
        "train on a less busy machine",
        f"{who} used {share(lost)} of the CPU time available to this run",
        less_time(lost),
        "none: stop or pause the others, or train when they have finished",
        lost * (summary.seconds or 0.0),
    )


def _memory(record: Record, summary: Summary) -> Iterator[Advice]:
    """The memory peak is close to the limit, or so far below that others could use the rest."""
    used = record.telemetry.get("memory_used")
    peak = max([summary.peak_memory or 0.0, *(used.ys if used else ())])
    limit = summary.memory_limit
    if not limit or not peak:
        return
    part, batch = peak / limit, _batch(record)
    told = f"{format_bytes(int(peak))} of {format_bytes(int(limit))} of memory used, {share(part)}"
    if part > TIGHT and batch and batch > 1:
        yield Advice(
            "use a smaller micro-batch",
            told,
            "avoids being killed at the memory limit; same training result, somewhat slower",
            f"optimize: {{micro_batch: {batch // 2}}}",
            1e9,
        )
    elif part < LOOSE and limit > 1024 * MIB:
        enough = max(512, -(-int(peak / 0.85 / MIB) // 256) * 256)
        if enough * MIB < limit * 0.75:
            yield Advice(
                "lower the memory limit",
                told,
                f"{format_bytes(int(limit) - enough * MIB)} more for other containers",
                f"limits: {{memory: {enough}m}}",
                0.0,
            )


def _idle_gpu(record: Record, summary: Summary) -> Iterator[Advice]:
    """The GPU was idle for a tenth of the time or more."""
    busy = record.telemetry.get("gpu_percent")
    if not busy or len(busy) < 10:
        return
    idle = 1 - sum(busy.ys) / len(busy) / 100
    seconds = idle * summary.phases.get("train", 0.0)
    if idle < 0.1 or summary.phases.get("input", 0.0) > seconds / 2:
        return
    gain, why = less_time(time_share(seconds, summary)), f"the GPU was idle for {share(idle)} of the time"
    if summary.phases.get("train", 0.0) >= PAYS and _unmeasured(record, "compile"):
        what = "measure compiled kernels and CUDA graphs, which leave less work to the host"
        yield Advice(what, why, gain, "optimize: {measure: full}", seconds)
    elif at(record.spec, "train", "batch_size") != "auto":
        what = "use larger batches, which need fewer kernels per sample; they change what is learned"
        yield Advice(what, why, gain, "train: {batch_size: auto}", seconds)


def _unmeasured(record: Record, name: str) -> bool:
    """Whether a setting is off without having been measured or requested."""
    rows = record.plan.decisions if record.plan else ()
    return any(d.name == name and d.value is False and d.source == "choice" for d in rows)


def _hot(record: Record, summary: Summary) -> Iterator[Advice]:
    """The GPU was so hot that it reduces its clock, or soon will."""
    heat = record.telemetry.get("gpu_temperature")
    hot = sum(degrees >= HOT for degrees in heat.ys) / len(heat) if heat else 0.0
    if heat and hot >= SHARE:
        yield Advice(
            "cool the GPU",
            f"it was at {HOT} °C or hotter for {share(hot)} of the time, up to {max(heat.ys):.0f} °C",
            "full clock speed: up to 10 % less time",
            "none: clean the fans, improve the airflow, or lower the power limit: sudo nvidia-smi --power-limit WATTS",
            1.0,
        )


def _batch(record: Record) -> int | None:
    """Samples per micro-batch, as the run computed them."""
    piece, whole = decided(record).get("micro_batch"), at(record.spec, "train", "batch_size")
    found = piece if isinstance(piece, int) and not isinstance(piece, bool) and piece > 0 else whole
    return found if isinstance(found, int) else None


MACHINE_RULES: tuple[Rule, ...] = (_throttled, _crowded, _memory, _idle_gpu, _hot)
