"""`drivetrain compare RUN RUN...`: differences between runs in spec, plan and result, and their curves in one plot.

    records -> sections (tables of differences, overlaid curves) -> terminal, compare.html

Without torch; the page is rendered like a report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import table as rich_table
from rich.text import Text as RichText

from drivetrain.data.notes import list_names
from drivetrain.errors import SpecError
from drivetrain.job import lower_is_better
from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import compare_best
from drivetrain.report.blocks import Block, Chart, Headline, Section, Table, Text, Tile, Tone
from drivetrain.report.formatting import format_duration, format_json, format_number, format_score
from drivetrain.report.page import render_page
from drivetrain.report.record import Record, Summary, read, summarize
from drivetrain.report.result_sections import make_metric_chart
from drivetrain.report.run_sections import describe_machine
from drivetrain.system.console import open_console, say
from drivetrain.system.files import blame_storage
from drivetrain.system.printable import printable, printable_text
from drivetrain.system.run_files import RunFiles
from drivetrain.system.units import format_bytes
from drivetrain.tracking.run_description import flatten

PAGE = "compare.html"
MAX_COMPARED_RUNS = 8
"""Largest number of runs; more lines in one plot cannot be told apart."""
MAX_FOLDER_NAME = 200
"""Characters of the names of runs in the name of a folder; file systems allow 255."""


@dataclass(frozen=True)
class CompareRequest:
    """The options of `drivetrain compare`."""

    runs: Sequence[Path]


def compare(request: CompareRequest) -> int:
    """Print the differences and write the page. Returns 0.

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
    folder = name_folder(request.runs)
    with blame_storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    RunFiles(folder).write_text(PAGE, printable_text(render_page(_make_headline(runs), compared_sections)))
    for section in compared_sections:
        _print_section(section)
    say(f"comparison: {folder}/{PAGE}")
    return 0


def name_folder(runs: Sequence[Path]) -> Path:
    """Name the folder of a comparison, next to the first run as it is named: a container has that path alone."""
    paths = [Path(os.path.abspath(run)) for run in runs]
    return paths[0].parent / f"compare-{'-'.join(path.name for path in paths)[:MAX_FOLDER_NAME]}"


def _read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    records = [read(folder) for folder in folders]
    has_same_names = len({record.name for record in records}) < len(records)
    names = [
        printable(str(folder)) if has_same_names else record.name
        for folder, record in zip(folders, records, strict=True)
    ]
    return [ComparedRun(name, record, summarize(record)) for name, record in zip(names, records, strict=True)]


def _make_headline(runs: Sequence[ComparedRun]) -> Headline:
    """Describe the best run, or say that the runs have different main metrics."""
    scores = {run.name: score for run in runs if (score := run.summary.find_score())}
    metrics = {metric for metric, _ in scores.values()}
    tiles = tuple(
        Tile(
            run.name,
            format_score(*scores[run.name]) if run.name in scores else "no result",
            f"{format_duration(run.summary.seconds)}, {format_number(run.summary.samples_per_second)} samples/s",
        )
        for run in runs
    )
    if len(metrics) == 1:
        metric = metrics.pop()
        best = (min if lower_is_better(metric) else max)(value for _, value in scores.values())
        names = [name for name, (_, value) in scores.items() if value == best]
        value, label = format_score(metric, best), f"best {metric} of {len(runs)} runs: {list_names(names)}"
    else:
        value, label = f"{len(runs)} runs", "not comparable: the runs have different main metrics"
    return Headline(
        run="comparison",
        subject=" · ".join(run.name for run in runs),
        status=f"{len(runs)} runs",
        ending="runs side by side; settings that are equal in all runs are not listed",
        value=value,
        label=label,
        is_score=not any(metric.endswith("loss") for metric in metrics),
        tiles=tiles,
    )


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


@dataclass(frozen=True)
class ComparedRun:
    """A run and its result, under a unique `name`."""

    name: str
    record: Record
    summary: Summary


def list_sections(runs: Sequence[ComparedRun]) -> list[Section]:
    """List the results, the curves, and the differences in specs, plans and machines."""
    names = tuple(run.name for run in runs)
    sections = [Section("Results", (Table(("result", *names), tuple(_list_results(runs))),))]
    if charts := list(_draw_curves(runs)):
        sections.append(Section("Curves", charts))
    for title, rows in _differences_by_section(runs).items():
        no_differences = Text(f"No differences between the {len(runs)} runs.", Tone.QUIET)
        table: Block = Table((title.lower(), *names), tuple(rows)) if rows else no_differences
        sections.append(Section(title, (table,)))
    return sections


def _differences_by_section(runs: Sequence[ComparedRun]) -> dict[str, list[tuple[str, ...]]]:
    """Return the differences in job files, plans and machines, by the title of their section."""
    machines = [describe_machine(run.record.hardware) if run.record.hardware else {} for run in runs]
    return {
        "Job files": list_differences([flatten(run.record.spec) for run in runs]),
        "Plans": list_differences([run.record.settings for run in runs]),
        "Machines": list_differences(machines),
    }


def list_differences(values: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """List the keys whose values differ between runs, in order of first appearance. A missing key counts as a missing value."""
    columns = [{key: format_json(value) for key, value in mapping.items() if value is not None} for mapping in values]
    return [row for row in _join_columns(columns) if len(set(row[1:])) > 1]


def _join_columns(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return a row for each key of any column: the key and its values."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [(key, *(column.get(key, "-") for column in columns)) for key in keys]


def _list_results(runs: Sequence[ComparedRun]) -> list[tuple[str, ...]]:
    """List the rows of the results table: a name, then a value for each run."""
    costs = [_describe_costs(run.summary) for run in runs]
    digests = [str(run.record.made_from.get("model") or "") for run in runs]
    if all(digests):
        is_same = len(set(digests)) == 1
        for column, digest in zip(costs, digests, strict=True):
            column["weights"] = "same bits" if is_same else digest[:12]
    return _join_columns([_describe_scores(run) for run in runs]) + _join_columns(costs)


def _describe_scores(run: ComparedRun) -> dict[str, str]:
    """Describe status, metrics and the best simple model of a run."""
    summary = run.summary
    scores = {"status": summary.status}
    if summary.best:
        scores[f"best {summary.best.metric}"] = format_number(summary.best.value)
    # Simple models are compared on validation samples, since the other run may have had no test.
    comparison = compare_best(run.record, replace(summary, test={}))
    baselines = comparison.sort_rows() if comparison else []
    if comparison and baselines:
        best_value = format_number(baselines[0].metrics[comparison.metric])
        scores["best simple model"] = f"{best_value} ({baselines[0].format_title()})"
    return scores | {name: format_number(value) for name, value in summary.choose_evaluation()[0].items()}


def _describe_costs(summary: Summary) -> dict[str, str]:
    """Describe time, memory and size of a run."""
    return {
        "time": format_duration(summary.seconds),
        "samples/s": format_number(summary.samples_per_second),
        "peak memory": format_bytes(int(summary.peak_memory)) if summary.peak_memory else "unknown",
        "steps": format_number(summary.steps),
        "parameters": format_number(summary.parameters),
    }


def _draw_curves(runs: Sequence[ComparedRun]) -> Iterator[Chart]:
    """Yield a chart for each value that at least two runs have, except values of single steps, which are too noisy."""
    # `validation/loss` is a value of an epoch, `loss` one of a step.
    keys = dict.fromkeys(key for run in runs for key in run.record.metrics if "/" in key)
    for key in sorted(keys, key=lambda key: not key.endswith("loss")):
        # In a chart of several runs, a line has the name of its run.
        lines = tuple(run.record.metrics[key].scale(run.name) for run in runs if run.record.metrics.get(key))
        kind = key.rpartition("/")[2]
        if len(lines) > 1 and max(map(len, lines)) > 1 and kind not in DETAILED_METRICS:
            yield make_metric_chart(format_json(key), "step", kind, lines)
