"""The page of a repeated training: mean and standard deviation of every metric over its runs, and the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.report.blocks import Headline, Section, Table, Text, Tile, Tone
from drivetrain.report.comparison import ABSENT, ComparedRun, make_curve_plots
from drivetrain.report.formatting import align_numbers, format_duration, format_json, format_number
from drivetrain.report.record import read, summarize
from drivetrain.report.render.page import write_pages
from drivetrain.system.files import USER_RWX, make_folder
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import parse_number, read_mapping


@dataclass(frozen=True)
class Spread:
    """The values of a metric over all runs."""

    metric: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation of the sample (n - 1); NaN for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def format_parts(self) -> tuple[str, str]:
        """Format the mean, and ± the deviation, with the same decimals."""
        mean, deviation = align_numbers((self.mean, self.deviation))
        return mean, f"± {deviation}"

    def __str__(self) -> str:
        return " ".join(self.format_parts())


def write(folder: Path, name: str, runs: Mapping[str, Path], notes: Sequence[str]) -> tuple[list[Spread], list[str]]:
    """Write repeat.html, repeat.md and repeat.json; returns the metrics, those that select the best weights first, and a line
    for each one that is not a number in every run.

    Args:
        folder: for the files.
        runs: finished runs, by what they differ in: `seed 0`.
        notes: remarks for the page.

    Raises:
        CheckpointError: if a folder holds no run.
        StorageError: if the folder cannot be written.
    """
    records = {key: read(run) for key, run in runs.items()}
    entries = [ComparedRun(key, record, summarize(record)) for key, record in records.items()]
    spreads, left_out = list(_list_spreads(entries)), list(_list_left_out(entries))
    head, below = _make_headline(name, entries, spreads), _make_sections(entries, spreads, left_out, notes)
    make_folder(folder, USER_RWX)
    write_pages(RunFiles(folder), "repeat", _list_results(entries, spreads) | {"left_out": left_out}, head, below)
    return spreads, left_out


def _read_metrics(entry: ComparedRun) -> dict[str, float]:
    """All metrics of the evaluation that selected the weights, and of the final test; NaN for what is not a number."""
    by_name: dict[str, float] = {}
    for part in ("best", "test"):
        for key, value in read_mapping(read_mapping(entry.record.result, part), "metrics").items():
            by_name[key] = math.nan if (number := parse_number(value)) is None else number  # JSON has null for NaN
    return by_name


def _list_left_out(entries: Sequence[ComparedRun]) -> Iterator[str]:
    values = {entry.name: _read_metrics(entry) for entry in entries}
    for key in dict.fromkeys(key for metrics in values.values() for key in metrics):
        broken = [name for name, metrics in values.items() if not math.isfinite(metrics.get(key, math.nan))]
        if broken:
            yield f"{key} has no mean: {', '.join(broken)} ended with NaN"


def _list_spreads(entries: Sequence[ComparedRun]) -> Iterator[Spread]:
    """Of every metric that is a number in all runs."""
    values = [_read_metrics(entry) for entry in entries]
    main_metrics = {entry.summary.best.metric for entry in entries if entry.summary.best}
    for key in sorted(values[0], key=lambda key: key not in main_metrics):
        if all(math.isfinite(metrics_of_run.get(key, math.nan)) for metrics_of_run in values):
            yield Spread(key, tuple(metrics_of_run[key] for metrics_of_run in values))


def _make_headline(name: str, entries: Sequence[ComparedRun], spreads: Sequence[Spread]) -> Headline:
    count = f"{len(entries)} runs"
    return Headline(
        run=f"{name}, repeated",
        what=" · ".join(entry.record.name for entry in entries),
        status=count,
        ending="mean ± standard deviation (n - 1) of the evaluation that selected the weights of each run, and of its test",
        value=str(spreads[0]) if spreads else "no result",
        label=f"{spreads[0].metric} of {count}" if spreads else "no metric is a number in all runs",
        tiles=tuple(Tile(format_json(spread.metric), *spread.format_parts()) for spread in spreads),
    )


def _make_sections(
    entries: Sequence[ComparedRun], spreads: Sequence[Spread], left_out: Sequence[str], notes: Sequence[str]
) -> list[Section]:
    numbers = [align_numbers((s.mean, s.deviation, min(s.values), max(s.values))) for s in spreads]
    rows = tuple((format_json(s.metric), *row) for s, row in zip(spreads, numbers, strict=True))
    table = Table(("metric", "mean", "standard deviation", "lowest", "highest"), rows)
    sections = [
        Section(
            "spread",
            "Mean and spread",
            (table, *(Text(line, Tone.WARN) for line in left_out), *(Text(note, Tone.QUIET) for note in notes)),
        ),
        Section("runs", "Runs", (_make_runs_table(entries, [spread.metric for spread in spreads]),)),
    ]
    curves = tuple(make_curve_plots(entries))
    return [*sections, Section("curves", "Curves", curves)] if curves else sections


def _make_runs_table(entries: Sequence[ComparedRun], metrics: Sequence[str]) -> Table:
    metrics_by_run = [_read_metrics(entry) for entry in entries]
    columns = {key: align_numbers([values[key] for values in metrics_by_run]) for key in metrics}
    rows = []
    for index, entry in enumerate(entries):
        best = entry.summary.best
        epoch = format_number(best.epoch) if best and best.epoch is not None else ABSENT
        values = (columns[key][index] for key in metrics)
        rows.append((entry.name, entry.record.name, *values, epoch, format_duration(entry.summary.seconds)))
    return Table(("", "run", *map(format_json, metrics), "best epoch", "time"), tuple(rows))


def _list_results(entries: Sequence[ComparedRun], spreads: Sequence[Spread]) -> dict[str, object]:
    return {
        "metrics": {s.metric: {"mean": s.mean, "deviation": s.deviation, "values": s.values} for s in spreads},
        "runs": {entry.name: {"run": entry.record.name, **entry.summary.to_json()} for entry in entries},
    }
