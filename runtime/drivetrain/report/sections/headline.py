"""The headline of a report: the result at a glance, and warnings that must not be missed."""

from __future__ import annotations

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import compare_best
from drivetrain.report.blocks import Headline, Tile, Tone
from drivetrain.report.formatting import format_duration, format_json, format_number, format_score
from drivetrain.report.record import Record, Summary, describe_exit
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.units import format_bytes

_TONES = {"done": Tone.GOOD, "failed": Tone.BAD, "stopped": Tone.WARN, "running": Tone.WARN, "unknown": Tone.WARN}


def make_headline(record: Record, summary: Summary) -> Headline:
    """The top of the report."""
    best, ending = summary.best, describe_ending(summary)
    if record.state and not record.result and record.metrics:
        ending += "; the numbers come from its logs, since it has not written its result"
    what = [summary.job, summary.task]
    run, epoch, step = (record.extension.get(key) for key in ("run", "epoch", "step"))
    if run:
        what.append(f"continues {format_json(run)} after epoch {format_json(epoch)}, step {format_json(step)}")
    return Headline(
        run=record.name,
        what=" · ".join(what),
        status=summary.status,
        tone=_TONES.get(summary.status, Tone.WARN),
        ending=ending,
        value=format_score(best.metric, best.value) if best else "no result",
        label="; ".join(filter(None, (_format_label(summary), describe_baselines(record, summary)))),
        tiles=tuple(_make_tiles(summary, record)),
        alerts=tuple(list_alerts(record)),
    )


def describe_baselines(record: Record, summary: Summary) -> str:
    """What the simple models say about the network; empty without them."""
    comparison = compare_best(record, summary)
    return comparison.describe_verdict() if comparison else ""


def describe_ending(summary: Summary) -> str:
    """How the run ended."""
    if summary.status == "running" and summary.exit_code is None:
        return "still running, or killed before it could record its end"
    code = "" if summary.exit_code is None else f"exit {summary.exit_code}: "
    reason = f"; {summary.stopped_because}" if summary.stopped_because else ""
    return f"{code}{describe_exit(summary.exit_code)}{reason}"


def list_alerts(record: Record) -> list[tuple[str, str]]:
    """Warnings that must not be missed, with the section that has the details."""
    warnings = [(f"{gap.file}: {gap.problem}; {gap.consequence}", "gaps") for gap in record.gaps]
    warnings += [
        (f"{name}: requested {format_json(row.get('asked'))}, effective {format_json(row.get('seen'))}", "seen")
        for name, row in list_differences(record.plan)
    ]
    broken = [(name, series.broken) for name, series in record.metrics.items() if series.broken]
    warnings += [(f"{name}: {count} values were NaN or infinite", "curves") for name, count in broken]
    return warnings


def _format_label(summary: Summary) -> str:
    best = summary.best
    if best is None:
        return "no evaluation yet"
    parts = []
    if best.step is not None:
        parts.append("at step " + _format_progress(best.step, summary.steps))
    if best.epoch is not None:
        parts.append("epoch " + _format_progress(best.epoch, summary.epochs))
    return f"best {best.metric}" + (f", {', '.join(parts)}" if parts else "")


def _format_progress(now: float, total: float | None) -> str:
    return format_number(now) + (f" of {format_number(total)}" if total else "")


def _make_tiles(summary: Summary, record: Record) -> list[Tile]:
    tiles = [
        Tile("time", format_duration(summary.seconds)),
        Tile("speed", format_number(summary.samples_per_second), "samples/s"),
        _make_memory_tile(summary, record),
    ]
    if summary.steps is not None:
        epochs = "" if summary.epochs is None else f"{format_number(summary.epochs)} epochs"
        tiles.append(Tile("steps", format_number(summary.steps), epochs))
    if summary.parameters is not None:
        frozen = summary.parameters - (summary.trainable if summary.trainable is not None else summary.parameters)
        remark = "all trainable" if not frozen else f"{format_number(summary.trainable)} trainable"
        tiles.append(Tile("parameters", format_number(summary.parameters), remark))
    # Beside a model stand its own metrics; the last epoch can be worse or better.
    metrics, remark = summary.choose_evaluation()
    headline_metric = summary.best.metric if summary.best else ""
    return tiles + [
        Tile(name, format_score(name, value), remark)
        for name, value in metrics.items()
        if name.rsplit("/", 1)[-1] not in DETAILED_METRICS and name != headline_metric
    ]


def _make_memory_tile(summary: Summary, record: Record) -> Tile:
    peak, limit = summary.peak_memory, summary.memory_limit
    value = format_bytes(int(peak)) if peak is not None else "unknown"
    if not limit:
        is_known = record.hardware or "memory_limit" in record.result
        return Tile("peak memory", value, "no limit" if is_known else "limit unknown")
    used = None if peak is None else peak / limit
    return Tile("peak memory", value, f"of {format_bytes(int(limit))}", used)
