"""What several runs have in common and where they differ: results, curves, specs, plans, machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.report.blocks import Block, Curves, Section, Table, Text, Tone
from runtime.report.formatting import duration, number, shown
from runtime.report.log_series import thin
from runtime.report.record import Record
from runtime.report.summary import Summary
from runtime.system.units import format_bytes

ABSENT = "-"


@dataclass(frozen=True)
class ComparedRun:
    """A run and its result, under a unique `name`."""

    name: str
    record: Record
    summary: Summary


def sections(entries: Sequence[ComparedRun]) -> list[Section]:
    """Results, curves, and differences in specs, plans and machines."""
    names = tuple(entry.name for entry in entries)
    found = [Section("results", "Results", (Table(("result", *names), tuple(_results(entries))),))]
    if curves := tuple(frames(entries)):
        found.append(Section("curves", "Curves", curves))
    titles = {"spec": "Job specs", "plan": "Plans", "machine": "Machines"}
    for anchor, rows in _different(entries).items():
        title = titles[anchor]
        same = Text(f"No differences between the {len(entries)} runs.", Tone.QUIET)
        table: Block = Table((title.lower(), *names), tuple(rows)) if rows else same
        found.append(Section(anchor, title, (table,)))
    return found


def comparison_json(entries: Sequence[ComparedRun]) -> dict[str, object]:
    """The comparison as data."""
    return {
        "runs": {
            e.name: {**e.summary.to_json(), "curves": {k: thin(s) for k, s in e.record.metrics.items()}}
            for e in entries
        },
        "differences": {
            name: {row[0]: dict(zip([e.name for e in entries], row[1:], strict=True)) for row in rows}
            for name, rows in _different(entries).items()
        },
    }


def _different(entries: Sequence[ComparedRun]) -> dict[str, list[tuple[str, ...]]]:
    """The differences in spec, plan and machine."""
    return {
        "spec": differences([flat(e.record.spec) for e in entries]),
        "plan": differences([_plan(e.record) for e in entries]),
        "machine": differences([_machine(e.record) for e in entries]),
    }


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
    evaluations = [
        {f"{name} ({source})": value for name, value in metrics.items()}
        for metrics, source in (s.evaluation() for s in summaries)
    ]
    for name in dict.fromkeys(name for each in evaluations for name in each):
        yield row(name, (number(each[name]) if name in each else ABSENT for each in evaluations))
    for name in dict.fromkeys(name for s in summaries for name in s.test):
        yield row(name, (number(s.test[name]) if name in s.test else ABSENT for s in summaries))
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


def frames(entries: Sequence[ComparedRun]) -> Iterator[Curves]:
    """A plot for each value that at least two runs have, except values of single steps, which are too noisy."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry.record.metrics if "/" in key))
    for key in sorted(keys, key=lambda key: not key.endswith("loss")):
        lines = tuple(e.record.metrics[key].scaled(e.name) for e in entries if e.record.metrics.get(key))
        if len(lines) > 1:
            low, high = min(min(line.ys) for line in lines), max(max(line.ys) for line in lines)
            wide = key.endswith("loss") and low > 0 and high > 50 * low
            yield Curves(f"{shown(key)}{' (log scale)' if wide else ''}", "step", lines, logarithmic=wide)
    speeds = tuple(
        e.record.telemetry["samples_per_second"].scaled(e.name).positive()
        for e in entries
        if e.record.telemetry.get("samples_per_second")
    )
    if len(speeds) > 1:
        yield Curves("Throughput, samples/s", "seconds", speeds, from_zero=True)
