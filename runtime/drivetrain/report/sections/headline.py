"""The headline of a report: the result at a glance, and warnings that must not be missed."""

from __future__ import annotations

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import compare
from drivetrain.report.blocks import Headline, Tile, Tone
from drivetrain.report.formatting import duration, format_json, number, score
from drivetrain.report.record import Record
from drivetrain.report.sections.plan import differences
from drivetrain.report.summary import Summary
from drivetrain.system.units import format_bytes

_TONES = {"done": Tone.GOOD, "failed": Tone.BAD, "stopped": Tone.WARN, "running": Tone.WARN, "unknown": Tone.WARN}


def headline(record: Record, summary: Summary) -> Headline:
    """The top of the report."""
    best = summary.best
    return Headline(
        run=record.name,
        what=" · ".join([summary.job, summary.task, *_describe_continuation(record)]),
        status=summary.status,
        tone=_TONES.get(summary.status, Tone.WARN),
        ending=ending(summary) + _source(record),
        value=score(best.metric, best.value) if best else "no result",
        label="; ".join(filter(None, (_label(summary), verdict(record, summary)))),
        tiles=tuple(_tiles(summary, record)),
        alerts=tuple(alerts(record)),
    )


def verdict(record: Record, summary: Summary) -> str:
    """What the simple models say about the network; empty without them."""
    best = summary.best
    comparison = compare(record.baselines, best.metric, {best.metric: best.value, **best.metrics}) if best else None
    return comparison.verdict() if comparison else ""


def _describe_continuation(record: Record) -> list[str]:
    run, epoch, step = (record.extension.get(key) for key in ("run", "epoch", "step"))
    return [f"continues {format_json(run)} after epoch {format_json(epoch)}, step {format_json(step)}"] if run else []


def ending(summary: Summary) -> str:
    """How the run ended."""
    if summary.status == "running" and summary.exit_code is None:
        return "still running, or killed before it could record its end"
    code = "" if summary.exit_code is None else f"exit {summary.exit_code}: "
    reason = f"; {summary.stopped_because}" if summary.stopped_because else ""
    return f"{code}{summary.meaning()}{reason}"


def _source(record: Record) -> str:
    """The source of the numbers of a run that did not finish."""
    begun = record.state and not record.result and record.metrics
    return "; the numbers come from its logs, since it has not written its result" if begun else ""


def alerts(record: Record) -> list[tuple[str, str]]:
    """Warnings that must not be missed, with the section that has the details."""
    warnings = [(f"{gap.file}: {gap.wrong}; {gap.lost}", "gaps") for gap in record.gaps]
    warnings += [
        (f"{name}: requested {format_json(row.get('asked'))}, effective {format_json(row.get('seen'))}", "seen")
        for name, row in differences(record.plan)
    ]
    broken = [(name, series.broken) for name, series in record.metrics.items() if series.broken]
    warnings += [(f"{name}: {count} values were NaN or infinite", "curves") for name, count in broken]
    return warnings


def _label(summary: Summary) -> str:
    best = summary.best
    if best is None:
        return "no evaluation yet"
    parts = []
    if best.step is not None:
        parts.append(f"at step {number(best.step)}" + (f" of {number(summary.steps)}" if summary.steps else ""))
    if best.epoch is not None:
        parts.append(f"epoch {number(best.epoch)}" + (f" of {number(summary.epochs)}" if summary.epochs else ""))
    return f"best {best.metric}" + (f", {', '.join(parts)}" if parts else "")


def _tiles(summary: Summary, record: Record) -> list[Tile]:
    tiles = [
        Tile("time", duration(summary.seconds)),
        Tile("speed", number(summary.samples_per_second), "samples/s"),
        _memory(summary, record),
    ]
    if summary.steps is not None:
        epochs = "" if summary.epochs is None else f"{number(summary.epochs)} epochs"
        tiles.append(Tile("steps", number(summary.steps), epochs))
    if summary.parameters is not None:
        frozen = summary.parameters - (summary.trainable if summary.trainable is not None else summary.parameters)
        remark = "all trainable" if not frozen else f"{number(summary.trainable)} trainable"
        tiles.append(Tile("parameters", number(summary.parameters), remark))
    # Beside a model stand its own metrics; the last epoch can be worse or better.
    metrics, remark = summary.evaluation()
    headline_metric = summary.best.metric if summary.best else ""
    return tiles + [
        Tile(name, score(name, value), remark)
        for name, value in metrics.items()
        if name.rsplit("/", 1)[-1] not in DETAILED_METRICS and name != headline_metric
    ]


def _memory(summary: Summary, record: Record) -> Tile:
    peak, limit = summary.peak_memory, summary.memory_limit
    value = format_bytes(int(peak)) if peak is not None else "unknown"
    if not limit:
        is_known = record.hardware or "memory_limit" in record.result
        return Tile("peak memory", value, "no limit" if is_known else "limit unknown")
    used = None if peak is None else peak / limit
    return Tile("peak memory", value, f"of {format_bytes(int(limit))}", used)
