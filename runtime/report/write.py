"""Writes the report of a run: report.html, report.md, report.json and its model card, from the files of its folder only.

    Record (the files) -> Summary (the result in numbers) -> Headline, Sections (content) -> page, markdown

Without torch and matplotlib. The supervisor writes the report in a separate process: `python -m runtime.report RUN`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from runtime.report import model_card
from runtime.report.confusion import confusions
from runtime.report.formatting import plain
from runtime.report.labels import label_tables
from runtime.report.log_series import thin
from runtime.report.record import Record, read
from runtime.report.render.markdown import markdown
from runtime.report.render.page import page
from runtime.report.sections.advice import advice
from runtime.report.sections.body import sections
from runtime.report.sections.headline import alerts, headline
from runtime.report.sections.plan import differences
from runtime.report.summary import Summary, summarize
from runtime.system.printable import printable_text
from runtime.system.run_files import RunFiles

__all__ = ["write"]


def write(run: Path) -> None:
    """Write the files into the run folder, the model card if the run has ended well. The same files give the same bytes.

    Raises:
        CheckpointError: if the folder holds no run.
        StorageError: if the folder cannot be written.
    """
    record = read(run)
    summary = summarize(record)
    head, below = headline(record, summary), sections(record, summary)
    RunFiles(run).write_json("report.json", plain(_data(record, summary)))
    RunFiles(run).write_text("report.md", printable_text(markdown(head, below)))
    RunFiles(run).write_text("report.html", printable_text(page(head, below)))
    if card := model_card.model_card(record, summary):
        RunFiles(run).write_text(model_card.FILE, printable_text(card))


def _data(record: Record, summary: Summary) -> dict[str, object]:
    """The report as data."""
    plan, hardware = record.plan, record.hardware
    return {
        "run": record.name,
        **summary.to_json(),
        "exit_meaning": summary.meaning(),
        "extended_from": dict(record.extension) or None,
        "started": record.state.get("started"),
        "ended": record.state.get("ended"),
        "alerts": [text for text, _ in alerts(record)],
        "advice": [{"change": a.change, "why": a.why, "gain": a.gain, "line": a.line} for a in advice(record, summary)],
        "gaps": [{"file": gap.file, "wrong": gap.wrong, "lost": gap.lost} for gap in record.gaps],
        "hardware": hardware.to_json() if hardware else None,
        "plan": plan.to_json() if plan else None,
        "differences": [name for name, _ in differences(plan)],
        "confusion": {
            c.head: {"classes": c.classes, "samples": c.total, "right": c.hits, "mistakes": c.mistakes()}
            for c in confusions(record.result.get("confusion"))
        },
        "labels": {
            table.head: {"samples": table.samples, "labels": [asdict(row) for row in table.rows]}
            for table in label_tables(record.result.get("confusion"))
        },
        "curves": {name: thin(series) for name, series in record.metrics.items()},
        "telemetry": {name: thin(series) for name, series in record.telemetry.items()},
        "events": record.events,
    }
