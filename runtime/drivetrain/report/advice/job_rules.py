"""Rules about the settings of the job: loading, checkpoints, padding, the stem, requests without effect."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.job.text import PART_TOKENS
from drivetrain.job.workload import format_flop
from drivetrain.report.advice.recommendation import (
    MIN_TIME_SHARE,
    Advice,
    Rule,
    compute_time_share,
    describe_saving,
    get_nested,
    is_turned_off,
    read_decisions,
    read_fact,
)
from drivetrain.report.formatting import format_duration, format_share
from drivetrain.report.record import Record, Summary
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.run_records import read_mapping


def _advise_on_waiting(record: Record, summary: Summary) -> Iterator[Advice]:
    """The network waited for batches."""
    seconds = summary.phases.get("input", 0.0)
    waiting_share, hardware = compute_time_share(seconds, summary), record.hardware
    if waiting_share < MIN_TIME_SHARE or hardware is None:
        return
    workers = read_decisions(record).get("loader_workers")
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
    why = f"training waited {format_duration(seconds)} for data"
    yield Advice(name, why, describe_saving(saved_share), line, seconds)


def _advise_on_saving(record: Record, summary: Summary) -> Iterator[Advice]:
    """Checkpoints took a large share of the time."""
    seconds = summary.phases.get("checkpoint", 0.0)
    part = compute_time_share(seconds, summary)
    every = get_nested(record.spec, "checkpoint", "every")
    if part >= MIN_TIME_SHARE and every not in (None, "15m"):
        yield Advice(
            "save checkpoints less often",
            f"checkpoints every {every} took {format_duration(seconds)}",
            describe_saving(part),
            "checkpoint: {every: 15m}",
            seconds,
        )


def _advise_on_padding(record: Record, summary: Summary) -> Iterator[Advice]:
    """Batches of texts were padded, and the job itself turned unpadding off."""
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
    """A ResNet got the stem for small images by default, which costs many times the FLOPs of the other one."""
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
    """Requested settings that did not take effect."""
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
