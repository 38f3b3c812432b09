"""`drivetrain compare RUN RUN...`: differences between runs in spec, plan and result, and their curves in one plot.

    records -> sections (tables of differences, overlaid curves) -> terminal, compare.html, compare.md, compare.json

Without torch; the page is rendered like a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import table as rich_table
from rich.text import Text as RichText

from drivetrain.data.labels import list_names
from drivetrain.errors import SpecError
from drivetrain.job import lower_is_better
from drivetrain.report.blocks import Headline, Section, Table, Text, Tile, Tone
from drivetrain.report.formatting import format_duration, format_number, to_strict_json
from drivetrain.report.record import read
from drivetrain.report.sections.compared_runs import ComparedRun, list_sections, make_json
from drivetrain.report.summary import summarize
from drivetrain.system.console import open_console, say, say_json
from drivetrain.system.files import blame_storage
from drivetrain.system.printable import printable
from drivetrain.system.run_files import RunFiles

MAX_COMPARED_RUNS = 8
"""Largest number of runs; more lines in one plot cannot be told apart."""
MAX_FOLDER_NAME = 200
"""Characters of the names of runs in the name of a folder; file systems allow 255."""


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
    if not 2 <= len(request.runs) <= MAX_COMPARED_RUNS:
        raise SpecError(
            f"{len(request.runs)} run{'s' * (len(request.runs) != 1)}",
            f"2 to {MAX_COMPARED_RUNS} runs",
            "drivetrain compare runs/NAME-001 runs/NAME-002",
        )
    runs = _read_runs(request.runs)
    compared_sections = list_sections(runs)
    names = "-".join(run.resolve().name for run in request.runs)
    folder = request.output or request.runs[0].resolve().parent / f"compare-{names[:MAX_FOLDER_NAME]}"
    _write(folder, runs, compared_sections)
    if request.json:
        say_json(to_strict_json(make_json(runs)), ascii_only=False)
        return 0
    for section in compared_sections:
        _print_section(section)
    say(f"comparison: {folder}/compare.html")
    return 0


def _read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    records = [read(folder) for folder in folders]
    has_same_names = len({record.name for record in records}) < len(records)
    names = [
        printable(str(folder)) if has_same_names else record.name
        for folder, record in zip(folders, records, strict=True)
    ]
    return [ComparedRun(name, record, summarize(record)) for name, record in zip(names, records, strict=True)]


def _make_headline(runs: Sequence[ComparedRun]) -> Headline:
    results = [(run.summary.best, run) for run in runs if run.summary.best]
    metrics = {best.metric for best, _ in results}
    tiles = tuple(
        Tile(
            run.name,
            format_number(run.summary.best.value) if run.summary.best else "no result",
            f"{format_duration(run.summary.seconds)}, {format_number(run.summary.samples_per_second)} samples/s",
        )
        for run in runs
    )
    if len(metrics) == 1:
        metric = metrics.pop()
        best = (min if lower_is_better(metric) else max)(best.value for best, _ in results)
        names = [run.name for result, run in results if result.value == best]
        value, label = format_number(best), f"best {metric} of {len(runs)} runs: {list_names(names)}"
    else:
        value, label = f"{len(runs)} runs", "not comparable: the runs have different main metrics"
    return Headline(
        run="comparison",
        what=" · ".join(run.name for run in runs),
        status=f"{len(runs)} runs",
        tone=Tone.PLAIN,
        ending="runs side by side; settings that are equal in all runs are not listed",
        value=value,
        label=label,
        tiles=tiles,
        alerts=(),
    )


def _write(folder: Path, runs: Sequence[ComparedRun], compared_sections: Sequence[Section]) -> None:
    from drivetrain.report.render.page_files import write_pages

    with blame_storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = RunFiles(folder.resolve() if folder.is_symlink() else folder)  # the user may have named a link
    write_pages(files, "compare", make_json(runs), _make_headline(runs), compared_sections)


def _print_section(section: Section) -> None:
    """Print tables and texts; curves are on the page only."""
    for block in section.blocks:
        if isinstance(block, Text):
            open_console().print(RichText(f"{section.title}: {block.text}", style="dim"))
        elif isinstance(block, Table):
            table = rich_table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for index, column in enumerate(block.columns):
                table.add_column(RichText(column), overflow="fold", no_wrap=index == 0)
            for row in block.rows:
                table.add_row(*map(RichText, row))
            open_console().print(table, RichText())
