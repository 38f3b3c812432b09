"""Writes the report of a run: report.html, report.md, report.json and its model card, from the files of its folder only.

    Record (the files) -> Summary (the result in numbers) -> Headline, Sections (content) -> page, markdown

Without torch. The supervisor writes the report in a separate process: `python -m drivetrain.report RUN`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from drivetrain.report.baseline_results import baselines_section
from drivetrain.report.blocks import Section, Table, Text
from drivetrain.report.confusion import read_confusions, read_label_tables
from drivetrain.report.formatting import format_json, format_number
from drivetrain.report.log_series import thin_points
from drivetrain.report.record import Record, Summary, describe_exit, read, summarize
from drivetrain.report.render.markdown import render_markdown
from drivetrain.report.render.page import write_pages
from drivetrain.report.sections import body
from drivetrain.report.sections.advice import list_advice
from drivetrain.report.sections.body import list_sections, provenance_section
from drivetrain.report.sections.headline import describe_baselines, list_alerts, make_headline
from drivetrain.report.sections.mistakes import read_columns
from drivetrain.report.sections.plan import list_differences
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import MODEL_CARD_FILE, RunFiles
from drivetrain.system.run_records import read_mapping


def write(run: Path) -> Record:
    """Write the files into the run folder, the model card if the run has ended well; returns what they are made of. The
    same files give the same bytes.

    Raises:
        CheckpointError: if the folder holds no run.
        StorageError: if the folder cannot be written.
    """
    record = read(run)
    summary = summarize(record)
    headline, sections = make_headline(record, summary), list_sections(record, summary)
    write_pages(RunFiles(run), "report", _list_results(record, summary), headline, sections)
    if card := make_model_card(record, summary):
        RunFiles(run).write_text(MODEL_CARD_FILE, printable_text(card))
    return record


def _list_results(record: Record, summary: Summary) -> dict[str, object]:
    """The report as data."""
    plan, hardware, advice = record.plan, record.hardware, list_advice(record, summary)
    return {
        "run": record.name,
        **summary.to_json(),
        "exit_meaning": describe_exit(summary.exit_code),
        "extended_from": dict(record.extension) or None,
        "started": record.state.get("started"),
        "ended": record.state.get("ended"),
        "baselines": {**record.baselines, "verdict": describe_baselines(record, summary)} if record.baselines else None,
        "alerts": [text for text, _ in list_alerts(record)],
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
    """The card as Markdown; empty for a run that has not ended well."""
    if not record.provenance:
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
    return render_markdown(make_headline(record, summary), [section for section in sections if section])


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
