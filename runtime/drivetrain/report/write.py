"""Writes the report of a run: report.html, report.md (the model card, too) and report.json, from the files of its folder only.

    Record (the files) -> Summary (the result in numbers) -> Headline, Sections (content) -> page, markdown

Without torch. The supervisor writes the report in a separate process: `python -m drivetrain.report RUN`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import compare_best
from drivetrain.report.blocks import Headline, Tile, Tone
from drivetrain.report.confusion import read_confusions, read_label_tables
from drivetrain.report.formatting import format_count, format_duration, format_json, format_number, format_score
from drivetrain.report.log_series import thin_points
from drivetrain.report.record import Record, Summary, describe_exit, read, summarize
from drivetrain.report.render.page import write_pages
from drivetrain.report.sections.advice import list_advice
from drivetrain.report.sections.body import list_sections
from drivetrain.report.sections.mistakes import read_columns
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.system.units import format_bytes

_TONES = {"done": Tone.GOOD, "failed": Tone.BAD, "stopped": Tone.WARN, "running": Tone.WARN, "unknown": Tone.WARN}


def write(run: Path) -> Record:
    """Write the files into the run folder, and return the record that they show. The same record gives the same bytes.

    Raises:
        CheckpointError: if the folder holds no run.
        StorageError: if the folder cannot be written.
    """
    record = read(run)
    summary = summarize(record)
    headline, sections = _make_headline(record, summary), list_sections(record, summary)
    write_pages(RunFiles(run), "report", _list_results(record, summary), headline, sections)
    return record


def _list_results(record: Record, summary: Summary) -> dict[str, object]:
    """List the report as data."""
    plan, hardware, advice = record.plan, record.hardware, list_advice(record, summary)
    return {
        "run": record.name,
        **summary.to_json(),
        "exit_meaning": describe_exit(summary.exit_code),
        "extended_from": dict(record.extension) or None,
        "started": record.state.get("started"),
        "ended": record.state.get("ended"),
        "baselines": {**record.baselines, "verdict": _describe_baselines(record, summary)}
        if record.baselines
        else None,
        "alerts": [text for text, _ in _list_alerts(record)],
        "advice": [{key: vars(change)[key] for key in ("change", "why", "gain", "line")} for change in advice],
        "gaps": [{"file": gap.file, "wrong": gap.problem, "lost": gap.consequence} for gap in record.gaps],
        "hardware": hardware.to_json() if hardware else None,
        "plan": plan.to_json() if plan else None,
        "differences": [name for name, _ in list_differences(plan)],
        "confusion": {
            c.head: {"classes": c.classes, "samples": c.total, "right": c.hits, "mistakes": c.list_mistakes()}
            for c in read_confusions(record.result.get("confusion"))
        },
        "labels": {
            table.head: {"samples": table.samples, "labels": [asdict(row) for row in table.rows]}
            for table in read_label_tables(record.result.get("confusion"))
        },
        "importance": [
            {"column": name, "mean": mean, "spread": spread} for name, mean, spread in read_columns(record.explanation)
        ],
        "curves": {name: thin_points(series) for name, series in record.metrics.items()},
        "telemetry": {name: thin_points(series) for name, series in record.telemetry.items()},
        "events": record.events,
    }


def _make_headline(record: Record, summary: Summary) -> Headline:
    """Make the top of the report."""
    score, ending = summary.find_score(), _describe_ending(summary)
    if record.state and not record.result and record.metrics:
        ending += "; the numbers come from its logs, since it has not written its result"
    subject = [summary.job, summary.task]
    run, epoch, step = (record.extension.get(key) for key in ("run", "epoch", "step"))
    if run:
        subject.append(f"continues {format_json(run)} after epoch {format_json(epoch)}, step {format_json(step)}")
    return Headline(
        run=record.name,
        what=" · ".join(subject),
        status=summary.status,
        tone=_TONES.get(summary.status, Tone.WARN),
        ending=ending,
        value=format_score(*score) if score else "no result",
        label="; ".join(filter(None, (_format_label(record, summary), _describe_baselines(record, summary)))),
        is_score=score is None or not score[0].endswith("loss"),
        tiles=tuple(_make_tiles(summary, record)),
        alerts=tuple(_list_alerts(record)),
    )


def _describe_baselines(record: Record, summary: Summary) -> str:
    """Return the verdict of the simple models on the network; empty without them."""
    comparison = compare_best(record, summary)
    return comparison.describe_verdict() if comparison else ""


def _describe_ending(summary: Summary) -> str:
    """Describe how the run ended."""
    if summary.status == "running" and summary.exit_code is None:
        return "still running, or killed before it could record its end"
    code = "" if summary.exit_code is None else f"exit {summary.exit_code}: "
    reason = f"; {summary.stopped_because}" if summary.stopped_because else ""
    return f"{code}{describe_exit(summary.exit_code)}{reason}"


def _list_alerts(record: Record) -> list[tuple[str, str]]:
    """List warnings that must not be missed, each with the section that has the details."""
    warnings = [(f"{gap.file}: {gap.problem}; {gap.consequence}", "gaps") for gap in record.gaps]
    warnings += [
        (f"{name}: requested {format_json(row.get('asked'))}, effective {format_json(row.get('seen'))}", "seen")
        for name, row in list_differences(record.plan)
    ]
    broken = [(name, series.broken) for name, series in record.metrics.items() if series.broken]
    warnings += [(f"{name}: {count} values were NaN or infinite", "curves") for name, count in broken]
    return warnings


def _format_label(record: Record, summary: Summary) -> str:
    """Describe the value in the headline: its metric, when it was reached, and the samples behind it."""
    score = summary.find_score()
    if summary.best is None or score is None:
        return "no evaluation yet"
    chosen_by = summary.best.metric
    phrases = [f"best {chosen_by}" if score[0] == chosen_by else f"{score[0]} with the best {chosen_by}"]
    if summary.best.step is not None:
        phrases.append("at step " + _format_progress(summary.best.step, summary.steps))
    if summary.best.epoch is not None:
        phrases.append("epoch " + _format_progress(summary.best.epoch, summary.epochs))
    return "; ".join(filter(None, (", ".join(phrases), _describe_samples(record, score[0]))))


def _describe_samples(record: Record, metric: str) -> str:
    """Describe the right samples of classes with their 95 % interval, or the unit of an error."""
    _, _, head_and_kind = metric.partition("/")
    head, _, kind = head_and_kind.rpartition("/")
    evaluated = record.result.get("confusion")
    for confusion in read_confusions(evaluated):
        if confusion.head == head and confusion.total:
            low, high = (round(100 * bound) for bound in confusion.interval)
            return f"{confusion.hits:,} of {confusion.total:,} right: {low} to {high} %"
    columns = read_mapping(read_mapping({"heads": evaluated}, "heads"), head).get("columns")
    if kind in ("rmse", "mae") and isinstance(columns, list) and len(columns) == 1:
        return f"in the unit of {format_json(columns[0])}"
    return ""


def _format_progress(done: float, total: float | None) -> str:
    return format_number(done) + (f" of {format_number(total)}" if total else "")


def _make_tiles(summary: Summary, record: Record) -> list[Tile]:
    tiles = [
        Tile("time", format_duration(summary.seconds)),
        Tile("speed", format_number(summary.samples_per_second), "samples/s"),
        _make_memory_tile(summary, record),
    ]
    if summary.steps is not None:
        epochs = "" if summary.epochs is None else format_count(summary.epochs, "epoch")
        tiles.append(Tile("steps", format_number(summary.steps), epochs))
    if summary.parameters is not None:
        frozen = summary.parameters - (summary.trainable if summary.trainable is not None else summary.parameters)
        remark = "all trainable" if not frozen else f"{format_number(summary.trainable)} trainable"
        tiles.append(Tile("parameters", format_number(summary.parameters), remark))
    # Beside a model stand its own metrics; the last epoch can be worse or better.
    metrics, remark = summary.choose_evaluation()
    score = summary.find_score()
    for name, value in metrics.items():
        is_detail = name.rsplit("/", 1)[-1] in DETAILED_METRICS
        if not is_detail and not (score and name == score[0]):
            tiles.append(Tile(name, format_score(name, value), remark))
    return tiles


def _make_memory_tile(summary: Summary, record: Record) -> Tile:
    peak, limit = summary.peak_memory, summary.memory_limit
    value = format_bytes(int(peak)) if peak is not None else "unknown"
    if not limit:
        is_known = record.hardware or "memory_limit" in record.result
        return Tile("peak memory", value, "no limit" if is_known else "limit unknown")
    used = None if peak is None else peak / limit
    return Tile("peak memory", value, f"of {format_bytes(int(limit))}", used)
