"""Advice: at most three changes to the spec that would have helped this run, each with its expected gain.

Every rule is a function of the record alone: it checks one thing, and gives one piece of advice or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.job.text import PART_TOKENS
from runtime.job.workload import format_flop
from runtime.report.blocks import Block, Section, Table, Text, Tone
from runtime.report.cpu_starvation import starved
from runtime.report.formatting import duration, share
from runtime.report.log_series import Series
from runtime.report.record import Record
from runtime.report.sections.plan import differences
from runtime.report.summary import Summary
from runtime.system.units import format_bytes

MOST = 3
SHARE = 0.05
"""Share of the time that justifies a change."""
SHORT, TIGHT, LOOSE = 20.0, 0.9, 0.4
"""Seconds; shorter runs get no advice. Shares of the memory limit that are too much, and needlessly little."""
CROWDED = 0.1
"""Share of the CPU time used by others that justifies advice."""
HOT = 80
"""Degrees Celsius from which on most GPUs reduce their clock."""
MIB = 2**20


@dataclass(frozen=True)
class Advice:
    """One recommended change."""

    change: str
    why: str
    gain: str
    line: str
    """The line for the spec."""
    weight: float
    """Seconds that it may save; larger than any run time if the run itself is at risk."""


Rule = Callable[[Record, Summary], Iterator[Advice]]


def advice(record: Record, summary: Summary) -> list[Advice]:
    """Suggested changes, most helpful first; empty for a run that is too short."""
    found = [advice for rule in RULES for advice in rule(record, summary)]
    return sorted(found, key=lambda one: -one.weight)[:MOST]


def advice_section(record: Record, summary: Summary) -> Section | None:
    """The advice as a table; None if the record is not sufficient for advice."""
    found = advice(record, summary)
    if not found and (not summary.phases or (summary.seconds or 0.0) < SHORT):
        return None
    rows = tuple((one.line, one.change, one.gain, one.why) for one in found)
    table: Block = Table(("change in the job file", "what it does", "expected gain", "reason"), rows)
    nothing = Text("No setting was found that would make this run faster or safer.", Tone.GOOD)
    return Section("advice", "Recommendations", (table if rows else nothing,))


def _waiting(record: Record, summary: Summary) -> Iterator[Advice]:
    """The network waited for batches."""
    seconds = summary.phases.get("input", 0.0)
    part, hardware = _part(seconds, summary), record.hardware
    if part < SHARE or hardware is None:
        return
    workers, spare, saved = _values(record).get("loader_workers"), hardware.cpu.budget - 1, part
    if _turned_off(record, "decode_cache"):
        name, line = "cache decoded samples", "optimize: {decode_cache: true}"
    elif isinstance(workers, int) and workers < spare:
        count = min(16, max(1, spare))
        name, line = "load data in worker processes", f"optimize: {{loader_workers: {count}}}"
        # At best, loading and training overlap completely, and the longer of the two remains.
        saved = 1 - max(1 - part, part / count)
    elif hardware.cpu.budget < hardware.cpu.host:
        name, line = "add a CPU for loading data", f"limits: {{cpus: {hardware.cpu.budget + 1}}}"
    else:
        return
    yield Advice(name, f"training waited {duration(seconds)} for data", _faster(saved), line, seconds)


def _throttled(record: Record, summary: Summary) -> Iterator[Advice]:
    """The CPU quota throttled the run."""
    held = record.telemetry.get("throttled_seconds", Series("")).risen("throttled")
    seconds = held.ys[-1] if held else 0.0
    hardware, threads = record.hardware, _values(record).get("cpu_threads")
    quota = hardware.cpu.quota if hardware else None
    if quota is None or hardware is None or _part(seconds, summary) < SHARE:
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
        _faster(min(0.9, _part(seconds, summary))),
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
    yield Advice(
        "train on a less busy machine",
        f"{who} used {share(lost)} of the CPU time available to this run",
        _faster(lost),
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


def _saving(record: Record, summary: Summary) -> Iterator[Advice]:
    """Checkpoints took a large share of the time."""
    seconds = summary.phases.get("checkpoint", 0.0)
    part = _part(seconds, summary)
    every = _at(record.spec, "checkpoint", "every")
    if part >= SHARE and every not in (None, "15m"):
        yield Advice(
            "save checkpoints less often",
            f"checkpoints every {every} took {duration(seconds)}",
            _faster(part),
            "checkpoint: {every: 15m}",
            seconds,
        )


def _padding(record: Record, summary: Summary) -> Iterator[Advice]:
    """Batches of texts were padded, and the job itself turned unpadding off."""
    filled, cut = (_number(record, "padding", name) for name in ("longest", "parts"))
    if filled is None or cut is None or not _turned_off(record, "unpadding"):
        return
    less = 1 - (1 - filled) / (1 - cut) if cut < 1 else 0.0
    seconds = less * sum(summary.phases.get(name, 0.0) for name in ("train", "forward"))
    if _part(seconds, summary) >= SHARE:
        yield Advice(
            "remove padding",
            f"{share(filled)} of a batch is padding; it would be {share(cut)}",
            _faster(_part(seconds, summary)),
            f"optimize: {{unpadding: {PART_TOKENS}}}",
            seconds,
        )


def _stem(record: Record, summary: Summary) -> Iterator[Advice]:
    """A ResNet got the stem for small images by default, which costs many times the FLOPs of the other one."""
    ours, theirs = (_number(record, "stem", name) for name in ("small", "large"))
    if not ours or not theirs:
        return
    seconds = sum(summary.phases.get(name, 0.0) for name in ("train", "forward")) * (1 - theirs / ours)
    if _part(seconds, summary) >= SHARE:
        yield Advice(
            "use the stem for large images",
            f"each sample takes {format_flop(ours)} with the small stem, {format_flop(theirs)} with the large one",
            f"{_faster(_part(seconds, summary))}; it sees less detail, so compare the accuracy",
            f"model: {{name: {_at(record.result, 'facts', 'stem', 'name')}, stem: large}}",
            seconds,
        )


def _idle_gpu(record: Record, summary: Summary) -> Iterator[Advice]:
    """The GPU was idle for a tenth of the time or more."""
    busy = record.telemetry.get("gpu_percent")
    plan = _values(record)
    if not busy or len(busy) < 10:
        return
    idle = 1 - sum(busy.ys) / len(busy) / 100
    seconds = idle * summary.phases.get("train", 0.0)
    if idle < 0.1 or summary.phases.get("input", 0.0) > seconds / 2:
        return
    for name, value in (("cuda_graphs", "true"), ("compile", "true")):
        if plan.get(name) in (False, "off"):
            yield Advice(
                "launch GPU kernels with less Python overhead",
                f"the GPU was idle for {share(idle)} of the time",
                f"up to {_faster(_part(seconds, summary))}",
                f"optimize: {{{name}: {value}}}",
                seconds,
            )
            return


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


def _useless(record: Record, summary: Summary) -> Iterator[Advice]:
    """Requested settings that did not take effect."""
    asked = record.spec.get("optimize")
    wanted = asked if isinstance(asked, Mapping) else {}
    for name, row in differences(record.plan):
        if name in wanted and wanted[name] != "auto":
            cause = f": {row['cause']}" if row.get("cause") else ""
            yield Advice(
                f"set {name} back to auto",
                f"it had no effect{cause}",
                "no speedup; the job file gets simpler",
                f"optimize: {{{name}: auto}}",
                0.5,
            )


RULES: tuple[Rule, ...] = (_waiting, _throttled, _crowded, _memory, _saving, _padding, _stem, _idle_gpu, _hot, _useless)


def _part(seconds: float, summary: Summary) -> float:
    """Share of the total time; 0 for a run that is too short."""
    whole = summary.seconds or 0.0
    return seconds / whole if whole >= SHORT else 0.0


def _faster(part: float) -> str:
    return f"up to {share(part)} less time"


def _values(record: Record) -> dict[str, Any]:
    return record.plan.values() if record.plan else {}


def _turned_off(record: Record, name: str) -> bool:
    """Whether it is off because the job says so; what was turned off by default has a reason."""
    rows = record.plan.decisions if record.plan else ()
    return any(d.name == name and d.value in (False, "off") and d.source in ("job", "file") for d in rows)


def _batch(record: Record) -> int | None:
    """Samples per micro-batch, as the run computed them."""
    piece, whole = _values(record).get("micro_batch"), _at(record.spec, "train", "batch_size")
    found = piece if isinstance(piece, int) and not isinstance(piece, bool) and piece > 0 else whole
    return found if isinstance(found, int) else None


def _number(record: Record, *keys: str) -> float | None:
    """A recorded fact about data or network; None for runs of earlier versions, which recorded text only."""
    value = _at(record.result, "facts", *keys)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _at(spec: Mapping[str, object], *keys: str) -> object:
    value: Any = spec
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
