"""The machine's resources, the limits of this run, and their use over time, by operator and by process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.hardware.facts import Hardware
from drivetrain.job.workload import format_flop
from drivetrain.report.blocks import Block, Curves, Section, StackedBar, Table, Text, Tone
from drivetrain.report.formatting import format_duration, format_json, format_number, format_share, shorten
from drivetrain.report.log_series import REPORTED_SHARE, CpuStarvation, Series, measure_starvation
from drivetrain.report.record import Summary
from drivetrain.system.units import format_bytes
from drivetrain.tracking.rank_record import RankRecord, compute_exchange, compute_usual_speed, find_slowest

_PHASES = {"train": "backward", "evaluate": "evaluation", "tune": "tuning"}
"""Names of phases if the trainer times forward, backward and update separately."""


def machine_section(hardware: Hardware) -> Section:
    """Show the resources of the host and the limits of this run."""
    blocks: list[Block] = [Table(("item", "host", "available to this run"), tuple(_list_facts(hardware)))]
    if hardware.gpu_trouble:
        blocks.append(Text(f"GPU: {format_json(hardware.gpu_trouble)}", Tone.WARN))
    if hardware.assumed:
        blocks.append(Text(f"Assumed, not detected: {', '.join(map(format_json, hardware.assumed))}.", Tone.QUIET))
    return Section("machine", "Machine", tuple(blocks), is_folded=not hardware.gpu_trouble)


def _list_facts(hardware: Hardware) -> list[tuple[str, str, str]]:
    cpu, memory, storage, torch = hardware.cpu, hardware.memory, hardware.storage, hardware.torch
    bounds = [f"affinity {cpu.affinity}"] if cpu.affinity != cpu.host else []
    bounds += [f"cpuset {cpu.cpuset}"] if cpu.cpuset is not None else []
    bounds += [f"quota {cpu.quota:g}"] if cpu.quota is not None else []
    cores = f"{cpu.cores} physical {'core' if cpu.cores == 1 else 'cores'}"
    group = f"cgroup v{hardware.cgroup}" if hardware.cgroup else "no cgroups"
    swap = "on" if memory.swap else "off"
    rows = [
        ("processor", format_json(cpu.model), f"{cpu.architecture}: {', '.join(cpu.flags) or 'no extensions'}"),
        ("logical CPUs", str(cpu.host), f"{cpu.budget} ({', '.join(bounds) or 'no limit'}); {cores}"),
        ("memory", format_bytes(memory.host), f"{format_bytes(memory.limit)} limit" if memory.limit else "no limit"),
        ("free memory at the start", "", f"{format_bytes(memory.available)} free, swap {swap}"),
    ]
    for gpu in hardware.gpus:
        chip = f"capability {'.'.join(map(str, gpu.capability))}, driver {gpu.driver}{', MIG' if gpu.mig else ''}"
        size, free = format_bytes(gpu.memory), format_bytes(gpu.free)
        rows.append((f"GPU {gpu.index}", f"{gpu.name}, {size}", f"{free} free; {chip}"))
    build = f"CUDA {torch.cuda}" if torch and torch.cuda else "CPU build"
    return [
        *rows,
        ("/dev/shm", "", f"{format_bytes(storage.shm)}{'' if storage.shm_exec else ', noexec'}"),
        ("free space for runs", "", format_bytes(storage.runs_free)),
        ("environment", format_json(hardware.place), f"{group}, image {format_json(hardware.image or 'none')}"),
        ("torch", "", f"{torch.version}, {build}" if torch else "not installed"),
        ("compiler", "", format_json(hardware.compiler or "none")),
    ]


def time_section(telemetry: Mapping[str, Series], summary: Summary, hardware: Hardware | None) -> Section | None:
    """Show the time by phase, and throughput and memory over time."""
    blocks: list[Block] = []
    if summary.phases:
        phases = {**summary.phases, "other": (summary.seconds or 0.0) - sum(summary.phases.values())}
        names = _PHASES if "forward" in phases else {}
        bar = tuple(
            (format_json(names.get(name, name)), seconds, format_duration(seconds))
            for name, seconds in phases.items()
            if seconds > 0
        )
        blocks.append(StackedBar("Time by phase", bar))
    blocks += _compare_forecast(summary)
    throttled = telemetry.get("throttled_seconds", Series("")).accumulate("throttled")
    charts = _make_charts(telemetry, summary, hardware, throttled)
    blocks += [chart for chart in charts if any(len(series) > 1 for series in chart.series)]
    blocks += _describe_gpus(telemetry)
    if throttled and throttled.ys[-1] > 0:
        blocks.append(Text(f"The CPU quota throttled this run for {format_duration(throttled.ys[-1])}.", Tone.WARN))
    blocks += [Text(line, Tone.WARN) for line in _describe_starvation(measure_starvation(telemetry, hardware))]
    remarks = (_describe_efficiency(summary), _describe_monitoring(summary))
    blocks += [Text(line, Tone.QUIET) for line in remarks if line]
    return Section("time", "Throughput and resource usage", tuple(blocks)) if blocks else None


def _compare_forecast(summary: Summary) -> Iterator[Text]:
    """Say what the first steps forecast."""
    forecast = summary.forecast
    if {"seconds", "low", "high", "steps", "error_percent"} <= forecast.keys():
        seconds, low, high = (format_duration(forecast[key]) for key in ("seconds", "low", "high"))
        yield Text(
            f"After {int(forecast['steps']):,} steps {seconds} were forecast ({low} to {high}) for the training, which took "
            f"{format_duration(summary.seconds)}: an error of {forecast['error_percent']:+.1f} %.",
            Tone.QUIET,
        )


def _describe_starvation(starvation: CpuStarvation | None) -> Iterator[str]:
    """Describe the CPU time that other processes or virtual machines took."""
    if starvation and starvation.others_share >= REPORTED_SHARE:
        yield (
            f"Other processes used the CPU for {format_duration(starvation.others)} while this run was waiting for it: "
            f"{format_share(starvation.others_share)} of its CPU time. They slowed it down."
        )
    if starvation and starvation.stolen_share >= REPORTED_SHARE:
        yield (
            f"The hypervisor gave {format_duration(starvation.stolen)} of CPU time to other virtual machines (steal), "
            f"{format_share(starvation.stolen_share)} of the total. No setting inside this machine can change that."
        )


def _describe_efficiency(summary: Summary) -> str:
    """Describe the achieved FLOP/s relative to the machine's peak."""
    operations, product = (summary.efficiency.get(key, 0.0) for key in ("operations", "product"))
    if not operations or not product or not summary.samples_per_second:
        return ""
    rate = operations * summary.samples_per_second
    return (
        f"Matrix products and convolutions: {format_flop(operations)} per sample, {format_flop(rate)} per second during "
        f"training. A large matrix product alone reaches {format_flop(product)} per second on this machine; training reaches "
        f"{format_share(rate / product)} of it."
    )


def _describe_monitoring(summary: Summary) -> str:
    """Return the cost of monitoring."""
    monitor_seconds = sum(summary.watching.values())
    names = [name for name, seconds in summary.watching.items() if seconds]
    if not monitor_seconds or not summary.seconds:
        return ""
    return f"Monitoring ({' and '.join(names)}) took {format_duration(monitor_seconds)} of CPU time, {format_share(monitor_seconds / summary.seconds)} of the run."


def _make_charts(
    telemetry: Mapping[str, Series], summary: Summary, hardware: Hardware | None, throttled: Series
) -> list[Curves]:
    ends = [series.xs[-1] for series in telemetry.values() if series]
    axis, time_scale = _choose_time_unit(max(ends, default=0.0))

    def line(key: str, name: str, scale: float = 1.0) -> Series:
        return telemetry.get(key, Series(key)).scale(name, time_scale, scale)

    top = max([summary.peak_memory or 0.0, *telemetry.get("memory_used", Series("")).ys])
    unit, bytes_ = ("GiB", 2.0**30) if max(top, summary.memory_limit or 0.0) >= 2**30 else ("MiB", 2.0**20)
    lines = (line("process_memory", "processes", 1 / bytes_), line("memory_used", "container", 1 / bytes_))
    memory = tuple(series for series in lines if series)
    cpu = hardware.cpu if hardware else None
    allowed = None if cpu is None else cpu.quota or float(cpu.budget)
    bound = ("allowed", allowed) if allowed else None
    limit = ("limit", summary.memory_limit / bytes_) if summary.memory_limit else None
    speed = line("samples_per_second", "samples/s").keep_positive()
    charts = [
        Curves("Throughput, samples/s", axis, (speed,), from_zero=True),
        Curves(f"Memory, {unit}", axis, memory, limit, from_zero=True),
        Curves("CPUs busy", axis, (line("cpu_percent", "CPUs", 0.01),), bound, from_zero=True),
        Curves("Waiting for data, %", axis, (line("input_wait", "waiting", 100.0),), from_zero=True),
    ]
    charts += _make_gpu_charts(telemetry, axis, time_scale)
    if throttled and throttled.ys[-1] > 0:
        throttled_series = throttled.scale("throttled", time_scale)
        charts.append(Curves("Throttled by the CPU quota, s", axis, (throttled_series,), from_zero=True))
    return charts


def _make_gpu_charts(telemetry: Mapping[str, Series], axis: str, time_scale: float) -> list[Curves]:
    """Draw the readings of the GPUs, with a line for each."""
    starts = [key.removesuffix("_percent") for key in telemetry if re.fullmatch(r"gpu\d*_percent", key)]
    starts = starts or (["gpu"] if "gpu_memory" in telemetry else [])

    def lines(scale: float, **names: str) -> tuple[Series, ...]:
        keys = [(f"{start} {name}".strip(), f"{start}_{key}") for key, name in names.items() for start in starts]
        return tuple(telemetry[key].scale(name, time_scale, scale) for name, key in keys if telemetry.get(key))

    size_lines = lines(1 / 2.0**30, memory="in use", allocated="tensors", reserved="reserved")
    limits = telemetry.get("gpu_memory_limit")
    limit = ("limit", limits.ys[-1] / 2.0**30) if limits else None
    return [
        Curves("GPU busy, %", axis, lines(1.0, percent=""), ("whole", 100.0), from_zero=True),
        Curves("GPU memory, GiB", axis, size_lines, limit, from_zero=True),
        Curves("GPU temperature, degrees Celsius", axis, lines(1.0, temperature="")),
        Curves("GPU power, W", axis, lines(1.0, power=""), from_zero=True),
        Curves("GPU clock, MHz", axis, lines(1.0, clock=""), from_zero=True),
    ]


def _describe_gpus(telemetry: Mapping[str, Series]) -> list[Block]:
    """Describe each GPU in a line, and warn if its clock was reduced."""
    blocks: list[Block] = []
    for key, busy in telemetry.items():
        match = re.fullmatch(r"(gpu\d*)_percent", key)
        if not match or not busy:
            continue
        readings = [f"{sum(busy.ys) / len(busy):.0f} % busy on average"]
        for name, form in (
            ("memory", "{} of memory at peak"),
            ("temperature", "{:.0f} degrees at most"),
            ("power", "{:.0f} W at most"),
        ):
            series = telemetry.get(f"{match[1]}_{name}")
            if series:
                readings.append(form.format(format_bytes(int(max(series.ys))) if name == "memory" else max(series.ys)))
        blocks.append(Text(f"{match[1].upper()}: {', '.join(readings)}."))
        throttled = telemetry.get(f"{match[1]}_throttled")
        if throttled and any(throttled.ys):
            text = f"{match[1].upper()}: its clock was throttled in {format_share(sum(throttled.ys) / len(throttled))} of the readings"
            blocks.append(Text(f"{text}; telemetry.jsonl lists the reasons.", Tone.WARN))
    return blocks


def _choose_time_unit(seconds: float) -> tuple[str, float]:
    """Choose the unit of the time axis, and a second in that unit."""
    if seconds < 300:
        return "seconds", 1.0
    return ("minutes", 1 / 60) if seconds < 3 * 3600 else ("hours", 1 / 3600)


# The first key that occurs in an operator's name counts: mkldnn contains mkl.
_LIBRARIES = {
    "mkldnn": "oneDNN",
    "onednn": "oneDNN",
    "mkl": "MKL",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
    "triton": "Triton",
    "aten::": "torch",
}


def operators_section(trace: Mapping[str, Any]) -> Section | None:
    """Return the most expensive operators of the profiled steps; None if nothing was profiled."""
    try:
        steps, total = int(trace["steps"]), float(trace["total"])
        rows = tuple(_format_operator(row, steps, total) for row in trace["operators"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # a damaged file, or one of no steps
        return None
    if not rows:
        return None
    where = "kernels on the GPU" if trace.get("device") == "cuda" else "operators on the CPU, in the calling thread"
    text = f"Average of {steps} steps after warm-up, {where}; time without called operators. Open trace.json.gz in Perfetto (ui.perfetto.dev)."
    table = Table(("operator", "library", "ms per step", "share", "calls per step"), rows)
    return Section("operators", "Slowest operators", (Text(text, Tone.QUIET), table))


def _format_operator(row: Mapping[str, Any], steps: int, total: float) -> tuple[str, ...]:
    name, seconds = format_json(row["name"]), float(row["seconds"])
    calls = int(row["calls"]) / steps
    return (
        shorten(name, 80),
        next((library for key, library in _LIBRARIES.items() if key in name.lower()), ""),
        f"{seconds / steps * 1000:.3g}",
        format_share(seconds / total),
        format_number(round(calls)) if calls >= 1 else f"{calls:.1f}",
    )


MAX_ROWS = 64
"""Largest number of rows."""


def ranks_section(records: Sequence[RankRecord]) -> Section | None:
    """Return the processes as a table, the slowest first if there are too many."""
    if len(records) < 2:
        return None
    slowest_rank = find_slowest(records)
    shown_records = records if len(records) <= MAX_ROWS else sorted(records, key=lambda record: record.speed)[:MAX_ROWS]
    columns = ("rank", "node", "computes on", "samples", "samples/s of its own", "computing", "waiting for data")
    table = Table(
        (*columns, "waiting for others, sending", "peak memory"),
        tuple(_format_rank(record) for record in shown_records),
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
    """Describe which process is the slowest, and why."""
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
    """Return whether a process waits for data longer than it computes."""
    return record.data > record.computing


def _format_rank(record: RankRecord) -> tuple[str, ...]:
    gpu_memory = f", GPU {format_bytes(record.gpu_memory)}" if record.gpu_memory else ""
    memory = format_bytes(record.peak_memory) + gpu_memory
    return (
        str(record.rank),
        format_json(record.node),
        f"{format_json(record.chip)}, {record.threads} {'thread' if record.threads == 1 else 'threads'}",
        format_number(record.samples),
        format_number(record.speed),
        *(format_share(record.share(seconds)) for seconds in (record.computing, record.data, record.others)),
        memory,
    )
