"""Rules about the settings of the job: loading, checkpoints, padding, the stem, requests without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drivetrain.job.text import PART_TOKENS
from drivetrain.job.workload import format_flop
from drivetrain.report.advice.recommendation import (
    MIN_TIME_SHARE,
    Advice,
    Rule,
    at,
    fact,
    is_turned_off,
    less_time,
    read_decisions,
    time_share,
)
from drivetrain.report.formatting import duration, share
from drivetrain.report.record import Record
from drivetrain.report.sections.plan import differences
from drivetrain.report.summary import Summary


def _waiting(record: Record, summary: Summary) -> Iterator[Advice]:
    """The network waited for batches."""
    seconds = summary.phases.get("input", 0.0)
    part, hardware = time_share(seconds, summary), record.hardware
    if part < MIN_TIME_SHARE or hardware is None:
        return
    workers, spare, saved = read_decisions(record).get("loader_workers"), hardware.cpu.budget - 1, part
    if is_turned_off(record, "decode_cache"):
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
    yield Advice(name, f"training waited {duration(seconds)} for data", less_time(saved), line, seconds)


def _saving(record: Record, summary: Summary) -> Iterator[Advice]:
    """Checkpoints took a large share of the time."""
    seconds = summary.phases.get("checkpoint", 0.0)
    part = time_share(seconds, summary)
    every = at(record.spec, "checkpoint", "every")
    if part >= MIN_TIME_SHARE and every not in (None, "15m"):
        yield Advice(
            "save checkpoints less often",
            f"checkpoints every {every} took {duration(seconds)}",
            less_time(part),
            "checkpoint: {every: 15m}",
            seconds,
        )


def _padding(record: Record, summary: Summary) -> Iterator[Advice]:
    """Batches of texts were padded, and the job itself turned unpadding off."""
    filled, cut = (fact(record, "padding", name) for name in ("longest", "parts"))
    if filled is None or cut is None or not is_turned_off(record, "unpadding"):
        return
    less = 1 - (1 - filled) / (1 - cut) if cut < 1 else 0.0
    seconds = less * sum(summary.phases.get(name, 0.0) for name in ("train", "forward"))
    if time_share(seconds, summary) >= MIN_TIME_SHARE:
        yield Advice(
            "remove padding",
            f"{share(filled)} of a batch is padding; it would be {share(cut)}",
            less_time(time_share(seconds, summary)),
            f"optimize: {{unpadding: {PART_TOKENS}}}",
            seconds,
        )


def _stem(record: Record, summary: Summary) -> Iterator[Advice]:
    """A ResNet got the stem for small images by default, which costs many times the FLOPs of the other one."""
    ours, theirs = (fact(record, "stem", name) for name in ("small", "large"))
    if not ours or not theirs:
        return
    seconds = sum(summary.phases.get(name, 0.0) for name in ("train", "forward")) * (1 - theirs / ours)
    if time_share(seconds, summary) >= MIN_TIME_SHARE:
        yield Advice(
            "use the stem for large images",
            f"each sample takes {format_flop(ours)} with the small stem, {format_flop(theirs)} with the large one",
            f"{less_time(time_share(seconds, summary))}; it sees less detail, so compare the accuracy",
            f"model: {{name: {at(record.result, 'facts', 'stem', 'name')}, stem: large}}",
            seconds,
        )


def _useless(record: Record, summary: Summary) -> Iterator[Advice]:
    """Requested settings that did not take effect."""
    requested = record.spec.get("optimize")
    settings = requested if isinstance(requested, Mapping) else {}
    for name, row in differences(record.plan):
        if name in settings and settings[name] != "auto":
            cause = f": {row['cause']}" if row.get("cause") else ""
            yield Advice(
                f"set {name} back to auto",
                f"it had no effect{cause}",
                "no speedup; the job file gets simpler",
                f"optimize: {{{name}: auto}}",
                0.5,
            )


JOB_RULES: tuple[Rule, ...] = (_waiting, _saving, _padding, _stem, _useless)
