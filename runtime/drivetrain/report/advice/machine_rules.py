"""Rules about the cost of a run: the machine and its limits (CPU quota, other processes, memory, an idle or a hot GPU, a slow
process), and settings of the job (loading, checkpoints, padding, the stem, requests without effect)."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.job.text import PART_TOKENS
from drivetrain.job.workload import format_flop
from drivetrain.report.advice.recommendation import (
    MIN_RUN_SECONDS,
    MIN_TIME_SHARE,
    Advice,
    Rule,
    compute_time_share,
    describe_saving,
    get_nested,
    is_turned_off,
    read_fact,
)
from drivetrain.report.formatting import format_duration, format_json, format_share
from drivetrain.report.log_series import Series, measure_starvation
from drivetrain.report.record import Record, Summary
from drivetrain.report.sections.machine import describe_slowest, waits_for_data
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.run_records import read_mapping
from drivetrain.system.units import format_bytes
from drivetrain.tracking.rank_record import compute_exchange, compute_usual_speed, find_slowest

TIGHT_SHARE, LOOSE_SHARE = 0.9, 0.4
"""Shares of the memory limit that are too much, and needlessly little."""
CROWDED_SHARE = 0.1
"""Share of the CPU time used by others that justifies advice."""
FULL_SHARE = 0.4
"""Share from which on it matters that threads wait for each other."""
HOT_CELSIUS = 80
"""Degrees Celsius from which on most GPUs reduce their clock."""
COMPILE_PAYS_SECONDS = 300.0
"""Seconds of training from which compiling, which takes up to a minute, can pay."""
MIB = 2**20
COSTLY_EXCHANGE = 0.2
"""Share of the time in the exchange from which on something else may pay."""


def _advise_on_throttling(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the CPU quota throttled the run."""
    throttled = record.telemetry.get("throttled_seconds", Series("")).accumulate("throttled")
    seconds = throttled.ys[-1] if throttled else 0.0
    hardware, threads = record.hardware, record.settings.get("cpu_threads")
    quota = hardware.cpu.quota if hardware else None
    if quota is None or hardware is None or compute_time_share(seconds, summary) < MIN_TIME_SHARE:
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
        f"the quota of {quota:g} CPUs throttled it for {format_duration(seconds)} of {format_duration(summary.seconds)}",
        describe_saving(min(0.9, compute_time_share(seconds, summary))),
        line,
        min(seconds, summary.seconds or 0.0),
    )


def _advise_on_crowding(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether other processes used the CPUs of this run."""
    starvation = measure_starvation(record.telemetry, record.hardware)
    lost_share = max(starvation.others_share, starvation.stolen_share) if starvation else 0.0
    if starvation is None or lost_share < CROWDED_SHARE or (summary.seconds or 0.0) < MIN_RUN_SECONDS:
        return
    who = "other processes" if starvation.others_share >= starvation.stolen_share else "other virtual machines"
    threads = record.settings.get("cpu_threads")
    waits = isinstance(threads, int) and threads > 1 and lost_share >= FULL_SHARE
    if waits and who == "other processes":
        yield Advice(
            "compute with one thread beside them",
            f"{who} used {format_share(lost_share)} of the CPU time, and each of {threads} threads waits until all of them had a CPU",
            "beside one busy process on 2 CPUs one thread trained 1.2 to 2 times as fast as two, beside two 1 to 13 times",
            "optimize: {cpu_threads: 1}",
            lost_share * (summary.seconds or 0.0),
        )
    yield Advice(
        "train on a less busy machine",
        f"{who} used {format_share(lost_share)} of the CPU time available to this run",
        describe_saving(lost_share),
        "none: stop or pause the others, or train when they have finished",
        lost_share * (summary.seconds or 0.0),
    )


def _advise_on_memory(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the memory peak is close to the limit, or so far below it that another container could use the difference."""
    used, limit = record.telemetry.get("memory_used"), summary.memory_limit
    # What processes have mapped says nothing about a limit: shared pages and the page cache can exceed it.
    peak = max(used.ys, default=0.0) if used else 0.0
    if not limit or not peak:
        return
    used_share, batch = peak / limit, _read_micro_batch(record)
    description = f"{format_bytes(int(peak))} of {format_bytes(int(limit))} of memory used, {format_share(used_share)}"
    if used_share > TIGHT_SHARE and batch and batch > 1:
        yield Advice(
            "use a smaller micro-batch",
            description,
            "avoids being killed at the memory limit; same training result, somewhat slower",
            f"optimize: {{micro_batch: {batch // 2}}}",
            1e9,
        )
    elif used_share < LOOSE_SHARE and limit > 1024 * MIB:
        enough_mib = max(512, -(-int(peak / 0.85 / MIB) // 256) * 256)
        if enough_mib * MIB < limit * 0.75:
            yield Advice(
                "lower the memory limit",
                description,
                f"{format_bytes(int(limit) - enough_mib * MIB)} more for other containers",
                f"limits: {{memory: {enough_mib}m}}",
                0.0,
            )


def _advise_on_idle_gpu(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the GPU was idle for a tenth of the time or more."""
    busy = record.telemetry.get("gpu_percent")
    if not busy or len(busy) < 10:
        return
    idle_share = 1 - sum(busy.ys) / len(busy) / 100
    seconds = idle_share * summary.phases.get("train", 0.0)
    if idle_share < 0.1 or summary.phases.get("input", 0.0) > seconds / 2:
        return
    gain = describe_saving(compute_time_share(seconds, summary))
    reason = f"the GPU was idle for {format_share(idle_share)} of the time"
    rows = record.plan.decisions if record.plan else ()
    compiles_unmeasured = any(d.name == "compile" and d.value is False and d.source == "choice" for d in rows)
    if summary.phases.get("train", 0.0) >= COMPILE_PAYS_SECONDS and compiles_unmeasured:
        change = "measure compiled kernels and CUDA graphs, which leave less work to the host"
        yield Advice(change, reason, gain, "optimize: {measure: full}", seconds)
    elif get_nested(record.spec, "train", "batch_size") != "auto":
        change = "use larger batches, which need fewer kernels per sample; they change what is learned"
        yield Advice(change, reason, gain, "train: {batch_size: auto}", seconds)


def _advise_on_hot_gpu(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the GPU was so hot that it reduced its clock, or soon will."""
    temperatures = record.telemetry.get("gpu_temperature")
    hot_share = sum(degrees >= HOT_CELSIUS for degrees in temperatures.ys) / len(temperatures) if temperatures else 0.0
    if temperatures and hot_share >= MIN_TIME_SHARE:
        yield Advice(
            "cool the GPU",
            f"it was at {HOT_CELSIUS} °C or hotter for {format_share(hot_share)} of the time, up to {max(temperatures.ys):.0f} °C",
            "full clock speed: up to 10 % less time",
            "none: clean the fans, improve the airflow, or lower the power limit: sudo nvidia-smi --power-limit WATTS",
            1.0,
        )


def _read_micro_batch(record: Record) -> int | None:
    """Read the samples per micro-batch, as the run computed them."""
    micro_batch, batch_size = record.settings.get("micro_batch"), get_nested(record.spec, "train", "batch_size")
    # A bool is an int, too: `false` means that the batch was not split.
    if isinstance(micro_batch, int) and not isinstance(micro_batch, bool) and micro_batch > 0:
        return micro_batch
    return batch_size if isinstance(batch_size, int) else None


def _advise_on_slow_rank(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the processes wait for a slow one at each step."""
    slowest_rank = find_slowest(record.ranks)
    if slowest_rank is None or (summary.seconds or 0.0) < MIN_RUN_SECONDS:
        return
    lost_share = 1 - slowest_rank.speed / compute_usual_speed(record.ranks, slowest_rank)
    node, workers = format_json(slowest_rank.node), record.settings.get("loader_workers")
    if waits_for_data(slowest_rank) and isinstance(workers, int):
        change, line = f"read data faster on {node}", f"optimize: {{loader_workers: {workers + 1}}}"
    else:
        change = f"find out what slows {node}"
        line = "none: look there for other processes, a throttled or hot chip, a slow disk; or leave that machine out"
    reason, gain = describe_slowest(record.ranks), describe_saving(lost_share)
    yield Advice(change, reason, gain, line, lost_share * slowest_rank.seconds)


def _advise_on_exchange(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether sending gradients takes a large share of each step."""
    exchange_share = compute_exchange(record.ranks)
    if exchange_share < COSTLY_EXCHANGE or (summary.seconds or 0.0) < MIN_RUN_SECONDS:
        return
    seconds = exchange_share * min(rank.seconds for rank in record.ranks)
    least = f"at least {format_share(exchange_share)} of the time of each"
    reason = f"the exchange between {len(record.ranks)} processes takes {least}"
    if get_nested(record.spec, "train", "batch_size") != "auto":
        change = "use larger batches, which exchange less often per sample; they change what is learned"
        yield Advice(change, reason, describe_saving(exchange_share / 2), "train: {batch_size: auto}", seconds / 2)


MACHINE_RULES: tuple[Rule, ...] = (
    _advise_on_throttling,
    _advise_on_crowding,
    _advise_on_memory,
    _advise_on_idle_gpu,
    _advise_on_hot_gpu,
    _advise_on_slow_rank,
    _advise_on_exchange,
)


def _advise_on_waiting(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the network waited for batches."""
    seconds = summary.phases.get("input", 0.0)
    waiting_share, hardware = compute_time_share(seconds, summary), record.hardware
    if waiting_share < MIN_TIME_SHARE or hardware is None:
        return
    workers = record.settings.get("loader_workers")
    spare_cpus, saved_share = hardware.cpu.budget - 1, waiting_share
    if is_turned_off(record, "decode_cache"):
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
    yield Advice(name, reason, describe_saving(saved_share), line, seconds)


def _advise_on_saving(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether checkpoints took a large share of the time."""
    seconds = summary.phases.get("checkpoint", 0.0)
    saving_share = compute_time_share(seconds, summary)
    every = get_nested(record.spec, "checkpoint", "every")
    if saving_share >= MIN_TIME_SHARE and every not in (None, "15m"):
        yield Advice(
            "save checkpoints less often",
            f"checkpoints every {every} took {format_duration(seconds)}",
            describe_saving(saving_share),
            "checkpoint: {every: 15m}",
            seconds,
        )


def _advise_on_padding(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether batches of texts were padded because the job turned unpadding off."""
    padded_share, remaining_share = (read_fact(record, "padding", name) for name in ("longest", "parts"))
    if padded_share is None or remaining_share is None or not is_turned_off(record, "unpadding"):
        return
    saved_share = 1 - (1 - padded_share) / (1 - remaining_share) if remaining_share < 1 else 0.0
    seconds = saved_share * sum(summary.phases.get(name, 0.0) for name in ("train", "forward"))
    if compute_time_share(seconds, summary) >= MIN_TIME_SHARE:
        yield Advice(
            "remove padding",
            f"{format_share(padded_share)} of a batch is padding; it would be {format_share(remaining_share)}",
            describe_saving(compute_time_share(seconds, summary)),
            f"optimize: {{unpadding: {PART_TOKENS}}}",
            seconds,
        )


def _advise_on_stem(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether a ResNet got the stem for small images, which costs many times the FLOPs of the large stem."""
    small_flop, large_flop = (read_fact(record, "stem", name) for name in ("small", "large"))
    if not small_flop or not large_flop:
        return
    seconds = sum(summary.phases.get(name, 0.0) for name in ("train", "forward")) * (1 - large_flop / small_flop)
    if compute_time_share(seconds, summary) >= MIN_TIME_SHARE:
        yield Advice(
            "use the stem for large images",
            f"each sample takes {format_flop(small_flop)} with the small stem, {format_flop(large_flop)} with the large one",
            f"{describe_saving(compute_time_share(seconds, summary))}; it sees less detail, so compare the accuracy",
            f"model: {{name: {get_nested(record.result, 'facts', 'stem', 'name')}, stem: large}}",
            seconds,
        )


def _advise_on_vain_settings(record: Record, summary: Summary) -> Iterator[Advice]:
    """List the requested settings that did not take effect."""
    settings = read_mapping(record.spec, "optimize")
    for name, row in list_differences(record.plan):
        if name in settings and settings[name] != "auto":
            cause = f": {row['cause']}" if row.get("cause") else ""
            yield Advice(
                f"set {name} back to auto",
                f"it had no effect{cause}",
                "no speedup; the job file gets simpler",
                f"optimize: {{{name}: auto}}",
                0.5,
            )


JOB_RULES: tuple[Rule, ...] = (
    _advise_on_waiting,
    _advise_on_saving,
    _advise_on_padding,
    _advise_on_stem,
    _advise_on_vain_settings,
)
