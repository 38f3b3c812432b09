"""Writes the report of a run: report.html, report.md (the model card, too) and report.json, from the files of its folder only.

    Record (the files) -> Summary (the result in numbers) -> Headline, Sections (content) -> page, markdown

Without torch. The supervisor writes the report in a separate process: `python -m drivetrain.report RUN`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drivetrain.job.formatting import choose_score
from drivetrain.report.baseline_results import compare_best
from drivetrain.report.blocks import Headline, Section, Tile, Tone
from drivetrain.report.confusion import read_confusions
from drivetrain.report.formatting import (
    format_count,
    format_duration,
    format_json,
    format_number,
    format_score,
    format_share,
    to_strict_json,
)
from drivetrain.report.markdown import render_markdown
from drivetrain.report.model_advice import list_advice
from drivetrain.report.page import render_page
from drivetrain.report.record import Record, Summary, describe_exit, read, summarize
from drivetrain.report.result_sections import METRIC_TITLES, list_result_sections, make_limits_section
from drivetrain.report.run_sections import list_differences, list_run_sections
from drivetrain.report.sample_sections import list_sample_sections
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import REPORT_DATA, REPORT_PAGE, REPORT_TEXT, RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.system.units import format_bytes

_TONES = {"done": Tone.GOOD, "failed": Tone.BAD}


def write(run: Path) -> Record:
    """Write the files into the run folder, and return the record that they show. The same record gives the same bytes.

    Raises:
        CheckpointError: if the folder holds no run.
        StorageError: if the folder cannot be written.
    """
    record = read(run)
    summary = summarize(record)
    headline, sections, files = _make_headline(record, summary), list_sections(record, summary), RunFiles(run)
    files.write_json(REPORT_DATA, to_strict_json(_list_results(record, summary)))
    files.write_text(REPORT_TEXT, printable_text(render_markdown(headline, sections)))
    files.write_text(REPORT_PAGE, printable_text(render_page(headline, sections)))
    return record


def list_sections(record: Record, summary: Summary) -> list[Section]:
    """List all sections that have content, in reading order."""
    limits = [make_limits_section(record, summary)] if record.made_from else []
    results = list_result_sections(record, summary)
    return [*results, *list_sample_sections(record), *limits, *list_run_sections(record, summary)]


def _list_results(record: Record, summary: Summary) -> dict[str, object]:
    """List the results as data; the other files of the run hold its plan, curves and counts."""
    return {
        "run": record.name,
        **summary.to_json(),
        "verdict": _describe_verdict(record, summary),
        "alerts": _list_alerts(record),
        "advice": [
            {"change": row.change, "line": row.line, "why": row.why, "gain": row.gain}
            for row in list_advice(record, summary)
        ],
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
        subject=" · ".join(subject),
        status=summary.status,
        tone=_TONES.get(summary.status, Tone.WARN),
        ending=ending,
        value=_format_scores(summary),
        label=_format_label(record, summary),
        verdict=_describe_verdict(record, summary),
        is_score=score is None or not score[0].endswith("loss"),
        tiles=tuple(_list_tiles(summary)),
        alerts=tuple(_list_alerts(record)),
    )


def _format_scores(summary: Summary) -> str:
    """Format the score; where the loss of several heads chose the weights, the score of each head."""
    score = summary.find_score()
    if summary.best is None or score is None:
        return "no result"
    metrics = summary.best.metrics
    heads = dict.fromkeys(name.split("/")[1] for name in metrics if name.count("/") > 1)
    if not score[0].endswith("loss") or not heads:
        return f"{METRIC_TITLES.get(score[0].rpartition('/')[2], '')} {format_score(*score)}".strip()
    names = [choose_score(f"{score[0].partition('/')[0]}/{head}/loss", metrics) for head in heads]
    # Such as `causa accuracy 87.5 %`.
    scores = [
        f"{' '.join(name.split('/')[1:])} {format_score(name, metrics[name])}" for name in names if name in metrics
    ]
    return " · ".join(scores)


def _describe_verdict(record: Record, summary: Summary) -> str:
    """Return the verdict of the simple models on the network as a sentence; empty without them."""
    comparison = compare_best(record, summary)
    verdict = comparison.describe_verdict() if comparison else ""
    return f"{verdict[:1].upper()}{verdict[1:]}." if verdict else ""


def _describe_ending(summary: Summary) -> str:
    """Describe how the run ended."""
    if summary.status == "running" and summary.exit_code is None:
        return "still running, or killed before it could record its end"
    code = "" if summary.exit_code is None else f"exit {summary.exit_code}: "
    reason = f"; {summary.stopped_because}" if summary.stopped_because else ""
    return f"{code}{describe_exit(summary.exit_code)}{reason}"


def _list_alerts(record: Record) -> list[str]:
    """List warnings that must not be missed."""
    warnings = list(record.gaps)
    for name, row in list_differences(record.plan):
        requested, effective = format_json(row.get("asked")), format_json(row.get("seen"))
        warnings.append(f"{name}: requested {requested}, effective {effective}")
    broken = [(name, series.broken) for name, series in record.metrics.items() if series.broken]
    return warnings + [f"{name}: {count} values were NaN or infinite" for name, count in broken]


def _format_label(record: Record, summary: Summary) -> str:
    """Describe the value in the headline: its metric, when it was reached, and the samples behind it."""
    score = summary.find_score()
    if summary.best is None or score is None:
        return "no evaluation yet"
    chosen_by = summary.best.metric
    phrases = [f"best {chosen_by}" if score[0] == chosen_by else f"{score[0]} with the best {chosen_by}"]
    if score[0].endswith("loss"):
        phrases = [f"best {chosen_by} {format_number(summary.best.value)}"]
    if summary.best.step is not None:
        phrases.append("at step " + _format_progress(summary.best.step, summary.steps))
    if summary.best.epoch is not None:
        phrases.append("epoch " + _format_progress(summary.best.epoch, summary.epochs))
    return "; ".join(filter(None, (_describe_samples(record, score[0]), ", ".join(phrases))))


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


def _list_tiles(summary: Summary) -> Iterator[Tile]:
    """Yield the costs of the run, and the size of the network."""
    yield Tile("time", format_duration(summary.seconds))
    yield Tile("speed", format_number(summary.samples_per_second), "samples/s")
    peak, limit = summary.peak_memory, summary.memory_limit
    remark = "no limit"
    if limit:
        used = "" if peak is None else f" ({format_share(peak / limit)})"
        remark = f"of {format_bytes(int(limit))}{used}"
    yield Tile("peak memory", "unknown" if peak is None else format_bytes(int(peak)), remark)
    if summary.steps is not None:
        epochs = "" if summary.epochs is None else format_count(summary.epochs, "epoch")
        yield Tile("steps", format_number(summary.steps), epochs)
    if summary.parameters is not None:
        is_whole = summary.trainable in (None, summary.parameters)
        remark = "all trainable" if is_whole else f"{format_number(summary.trainable)} trainable"
        yield Tile("parameters", format_number(summary.parameters), remark)
