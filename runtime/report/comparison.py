"""`drivetrain compare RUN RUN...`: differences between runs in spec, plan and result, and their curves in one plot.

    records -> sections (tables of differences, overlaid curves) -> terminal, compare.html, compare.md, compare.json

Without torch; the page is rendered like a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import table as tables
from rich.text import Text as Line

from runtime.errors import SpecError
from runtime.job import lower_is_better
from runtime.report.blocks import Headline, Section, Table, Text, Tile, Tone
from runtime.report.formatting import duration, number, plain
from runtime.report.record import read
from runtime.report.sections.compared_runs import ComparedRun, comparison_json, sections
from runtime.report.summary import summarize
from runtime.system.console import console, say, say_json
from runtime.system.files import storage_error, write_json, write_text
from runtime.system.printable import printable, printable_text

MOST = 8
"""Largest number of runs; more lines in one plot cannot be told apart."""


@dataclass(frozen=True)
class CompareRequest:
    """The options of `drivetrain compare`."""

    runs: Sequence[Path]
    output: Path | None = None
    json: bool = False


def compare(request: CompareRequest) -> int:
    """Print the differences and write the three files. Returns 0.

    Raises:
        SpecError: for fewer than two runs, or too many.
        CheckpointError: if a folder holds no run.
        StorageError: if the output folder cannot be written.
    """
    if not 2 <= len(request.runs) <= MOST:
        raise SpecError(
            f"{len(request.runs)} run{'s' * (len(request.runs) != 1)}",
            f"2 to {MOST} runs",
            "drivetrain compare runs/NAME-001 runs/NAME-002",
        )
    entries = _entries(request.runs)
    below = sections(entries)
    folder = request.output or _folder(request.runs)
    _write(folder, entries, below)
    if request.json:
        say_json(plain(comparison_json(entries)), ascii_only=False)
        return 0
    for section in below:
        _print(section)
    say(f"comparison: {folder}/compare.html")
    return 0


def _entries(runs: Sequence[Path]) -> list[ComparedRun]:
    records = [read(run) for run in runs]
    alike = len({record.name for record in records}) < len(records)
    names = [printable(str(run)) if alike else record.name for run, record in zip(runs, records, strict=True)]
    return [ComparedRun(name, record, summarize(record)) for name, record in zip(names, records, strict=True)]


def _headline(entries: Sequence[ComparedRun]) -> Headline:
    rated = [(e.summary.best.value, e) for e in entries if e.summary.best]
    metrics = {e.summary.best.metric for _, e in rated if e.summary.best}
    tiles = tuple(
        Tile(
            e.name,
            number(e.summary.best.value) if e.summary.best else "no result",
            f"{duration(e.summary.seconds)}, {number(e.summary.samples_per_second)} samples/s",
        )
        for e in entries
    )
    value, label = f"{len(entries)} runs", "not comparable: the runs have different main metrics"
    if len(metrics) == 1:
        metric = metrics.pop()
        best, entry = (min if lower_is_better(metric) else max)(rated, key=lambda pair: pair[0])
        value, label = number(best), f"best {metric} of {len(entries)} runs: {entry.name}"
    return Headline(
        run="comparison",
        what=" · ".join(e.name for e in entries),
        status=f"{len(entries)} runs",
        tone=Tone.PLAIN,
        ending="runs side by side; values that are equal in all runs are not listed",
        value=value,
        label=label,
        tiles=tiles,
        alerts=(),
    )


def _folder(runs: Sequence[Path]) -> Path:
    return runs[0].resolve().parent / f"compare-{runs[0].resolve().name}-{runs[-1].resolve().name}"


def _write(folder: Path, entries: Sequence[ComparedRun], below: Sequence[Section]) -> None:
    from runtime.report.render.markdown import markdown
    from runtime.report.render.page import page

    head = _headline(entries)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from None
    write_json(folder / "compare.json", plain(comparison_json(entries)))
    write_text(folder / "compare.md", printable_text(markdown(head, below)))
    write_text(folder / "compare.html", printable_text(page(head, below)))


def _print(section: Section) -> None:
    """Print tables and texts; curves are on the page only."""
    for block in section.blocks:
        if isinstance(block, Text):
            console().print(Line(f"{section.title}: {block.text}", style="dim"))
        elif isinstance(block, Table):
            made = tables.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for index, column in enumerate(block.columns):
                made.add_column(Line(column), overflow="fold", no_wrap=index == 0)
            for row in block.rows:
                made.add_row(*map(Line, row))
            console().print(made, Line())
