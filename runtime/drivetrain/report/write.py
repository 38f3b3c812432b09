"""Writes the report of a run: report.html, report.md, report.json and its model card, from the files of its folder only.

    Record (the files) -> Summary (the result in numbers) -> Headline, Sections (content) -> page, markdown

Without torch. The supervisor writes the report in a separate process: `python -m drivetrain.report RUN`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import baselines_section, compare_best
from drivetrain.report.blocks import Headline, Section, Table, Text, Tile, Tone
from drivetrain.report.confusion import read_confusions, read_label_tables
from drivetrain.report.formatting import format_duration, format_json, format_number, format_score
from drivetrain.report.log_series import thin_points
from drivetrain.report.record import Record, Summary, describe_exit, read, summarize
from drivetrain.report.render.markdown import render_markdown
from drivetrain.report.render.page import write_pages
from drivetrain.report.sections import body
from drivetrain.report.sections.advice import list_advice
from drivetrain.report.sections.body import list_sections, provenance_section
from drivetrain.report.sections.mistakes import read_columns
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import MODEL_CARD_FILE, RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.system.units import format_bytes

_TONES = {"done": Tone.GOOD, "failed": Tone.BAD, "stopped": Tone.WARN, "running": Tone.WARN, "unknown": Tone.WARN}


def write(run: Path) -> Record:
    """Write the files into the run folder, the model card if the run has ended well; returns what they are made of. The
    same files give the same bytes.

    Raises:
        CheckpointError: if the folder holds no run.
        StorageError: if the folder cannot be written.
    """
    record = read(run)
    summary = summarize(record)
    headline, sections = _make_headline(record, summary), list_sections(record, summary)
    write_pages(RunFiles(run), "report", _list_results(record, summary), headline, sections)
    if card := make_model_card(record, summary):
        RunFiles(run).write_text(MODEL_CARD_FILE, printable_text(card))
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
        "advice": [{key: vars(one)[key] for key in ("change", "why", "gain", "line")} for one in advice],
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


def make_model_card(record: Record, summary: Summary) -> str:
    """Make the card as Markdown; empty for a run that has not ended well."""
    if not record.made_from:
        return ""
    result = record.result
    sections = [
        Section("model", "Model", (Table(("item", "value"), tuple(_list_facts(record, summary))),)),
        body.data_section(result.get("data")),
        baselines_section(record, summary),
        body.final_test_section(record, summary),
        *(body.confusion_section(table_or_matrix) for table_or_matrix in read_confusions(result.get("confusion"))),
        *(body.labels_section(table_or_matrix) for table_or_matrix in read_label_tables(result.get("confusion"))),
        Section("limits", "Limits", tuple(map(Text, _list_limits(record, summary)))),
        provenance_section(record),
    ]
    return render_markdown(_make_headline(record, summary), [section for section in sections if section])


def _list_facts(record: Record, summary: Summary) -> Iterator[tuple[str, str]]:
    train = read_mapping(record.spec, "train")
    yield "task", format_json(summary.task)
    if model := record.result.get("model"):
        yield "network", format_json(model)
    if summary.parameters is not None:
        trained = f"{format_number(summary.trainable or 0)} were trained"
        yield "parameters", f"{format_number(summary.parameters)}, of which {trained}"
    for key in ("loss", "optimizer", "schedule"):
        setting = train.get(key)
        if name := setting.get("name") if isinstance(setting, Mapping) else setting:
            yield key, format_json(name)
    if summary.epochs is not None and summary.steps is not None:
        yield "trained for", f"{format_number(summary.epochs)} epochs, {format_number(summary.steps)} steps"
    yield "use", f"drivetrain predict {record.name} INPUT"


def _list_limits(record: Record, summary: Summary) -> Iterator[str]:
    if summary.test:
        yield "The final test was made once, with data on which nothing was chosen. Other data can give other values."
    else:
        yield (
            "The values are those of the validation data, which also selected the weights, so they are a little too good. "
            "A final test (`data.test`) has not been made."
        )
    yield f"Measure it with data of the place where it will be used: `drivetrain evaluate {record.name} --data PATH`."
    yield "What the model must not be used for, and whom its mistakes can harm, only its makers know: add it here."


def _make_headline(record: Record, summary: Summary) -> Headline:
    """Make the top of the report."""
    best, ending = summary.best, _describe_ending(summary)
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
        label="; ".join(filter(None, (_format_label(summary), _describe_baselines(record, summary)))),
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
