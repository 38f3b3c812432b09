"""`drivetrain compare RUN RUN...`: differences between runs in spec, plan and result, and their curves in one plot.

    records -> sections (tables of differences, overlaid curves) -> terminal, compare.html, compare.md, compare.json

Without torch; the page is rendered like a report.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import table as tables
from rich.text import Text as Line

from runtime.errors import SpecError
from runtime.job import lower_is_better
from runtime.report.blocks import Block, Curves, Headline, Section, Table, Text, Tile, Tone
from runtime.report.formatting import clean, duration, number, plain, shown
from runtime.report.log_series import thin
from runtime.report.record import Record, read
from runtime.report.summary import Summary, summarize
from runtime.system.console import console
from runtime.system.files import storage_error, write_json, write_text
from runtime.system.units import format_bytes

MOST = 8
"""Largest number of runs; more lines in one plot cannot be told apart."""
ABSENT = "-"


@dataclass(frozen=True)
class CompareRequest:
    """The options of `drivetrain compare`."""

    runs: Sequence[Path]
    output: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class ComparedRun:
    """A run and its result, under a unique `name`."""

    name: str
    record: Record
    summary: Summary


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
        print(json.dumps(plain(_data(entries)), indent=1, ensure_ascii=False))
        return 0
    for section in below:
        _print(section)
    print(f"comparison: {folder}/compare.html")
    return 0


def sections(entries: Sequence[ComparedRun]) -> list[Section]:
    """Results, curves, and differences in specs, plans and machines."""
    names = tuple(entry.name for entry in entries)
    found = [Section("results", "Results", (Table(("result", *names), tuple(_results(entries))),))]
    if frames := tuple(_frames(entries)):
        found.append(Section("curves", "Curves", frames))
    for anchor, title, rows in (
        ("spec", "Job specs", differences([flat(e.record.spec) for e in entries])),
        ("plan", "Plans", differences([_plan(e.record) for e in entries])),
        ("machine", "Machines", differences([_machine(e.record) for e in entries])),
    ):
        same = Text(f"No differences between the {len(entries)} runs.", Tone.QUIET)
        table: Block = Table((title.lower(), *names), tuple(rows)) if rows else same
        found.append(Section(anchor, title, (table,)))
    return found


def differences(values: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """The keys whose values are not the same in all runs, in the order of the first run that has them."""
    keys = dict.fromkeys(key for mapping in values for key in mapping)
    rows = [(key, *(shown(mapping[key]) if key in mapping else ABSENT for mapping in values)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def flat(value: object, path: str = "") -> dict[str, object]:
    """Nested data as one mapping with dotted keys."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {k: v for key, item in value.items() for k, v in flat(item, f"{path}.{key}" if path else str(key)).items()}


def _entries(runs: Sequence[Path]) -> list[ComparedRun]:
    records = [read(run) for run in runs]
    alike = len({record.name for record in records}) < len(records)
    names = [clean(str(run)) if alike else record.name for run, record in zip(runs, records, strict=True)]
    return [ComparedRun(name, record, summarize(record)) for name, record in zip(names, records, strict=True)]


def _results(entries: Sequence[ComparedRun]) -> Iterator[tuple[str, ...]]:
    def row(name: str, values: Iterator[str]) -> tuple[str, ...]:
        return name, *values

    summaries = [entry.summary for entry in entries]
    yield row("status", (s.status for s in summaries))
    for metric in dict.fromkeys(s.best.metric for s in summaries if s.best):
        yield row(
            f"best {metric}",
            (number(s.best.value) if s.best and s.best.metric == metric else ABSENT for s in summaries),
        )
    for name in dict.fromkeys(name for s in summaries for name in s.last):
        yield row(f"last {name}", (number(s.last[name]) if name in s.last else ABSENT for s in summaries))
    yield row("time", (duration(s.seconds) for s in summaries))
    yield row("samples/s", (number(s.samples_per_second) for s in summaries))
    yield row("peak memory", (format_bytes(int(s.peak_memory)) if s.peak_memory else "unknown" for s in summaries))
    yield row("steps", (number(s.steps) for s in summaries))
    yield row("parameters", (number(s.parameters) for s in summaries))


def _plan(record: Record) -> dict[str, Any]:
    return record.plan.values() if record.plan else {}


def _machine(record: Record) -> dict[str, object]:
    hardware = record.hardware
    if hardware is None:
        return {}
    return {
        "processor": hardware.cpu.model,
        "CPUs": hardware.cpu.budget,
        "memory limit": format_bytes(hardware.memory.limit) if hardware.memory.limit else "none",
        "GPU": hardware.gpu.name if hardware.gpu else "none",
        "image": hardware.image or "none",
        "torch": hardware.torch.version if hardware.torch else "none",
    }


def _frames(entries: Sequence[ComparedRun]) -> Iterator[Curves]:
    """A plot for each value that at least two runs have, except values of single steps, which are too noisy."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry.record.metrics if "/" in key))
    for key in sorted(keys, key=lambda key: not key.endswith("loss")):
        lines = tuple(e.record.metrics[key].scaled(e.name) for e in entries if e.record.metrics.get(key))
        if len(lines) > 1:
            low, high = min(min(line.ys) for line in lines), max(max(line.ys) for line in lines)
            wide = key.endswith("loss") and low > 0 and high > 50 * low
            yield Curves(f"{shown(key)}{' (log scale)' if wide else ''}", "step", lines, logarithmic=wide)
    speeds = tuple(
        e.record.telemetry["samples_per_second"].scaled(e.name)
        for e in entries
        if e.record.telemetry.get("samples_per_second")
    )
    if len(speeds) > 1:
        yield Curves("Throughput, samples/s", "seconds", speeds, from_zero=True)


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


def _data(entries: Sequence[ComparedRun]) -> dict[str, object]:
    """The comparison as data."""
    return {
        "runs": {
            e.name: {**e.summary.to_json(), "curves": {k: thin(s) for k, s in e.record.metrics.items()}}
            for e in entries
        },
        "differences": {
            title: {row[0]: dict(zip([e.name for e in entries], row[1:], strict=True)) for row in differences(values)}
            for title, values in (
                ("spec", [flat(e.record.spec) for e in entries]),
                ("plan", [_plan(e.record) for e in entries]),
                ("machine", [_machine(e.record) for e in entries]),
            )
        },
    }


def _folder(runs: Sequence[Path]) -> Path:
    return runs[0].resolve().parent / f"compare-{runs[0].resolve().name}-{runs[-1].resolve().name}"


def _write(folder: Path, entries: Sequence[ComparedRun], below: Sequence[Section]) -> None:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from runtime.report.render.markdown import markdown
    from runtime.report.render.page import page

    head = _headline(entries)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from None
    write_json(folder / "compare.json", plain(_data(entries)))
    write_text(folder / "compare.md", clean(markdown(head, below)))
    write_text(folder / "compare.html", clean(page(head, below)))


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
