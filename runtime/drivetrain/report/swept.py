"""The page of a sweep: the best trial, its values, the course of the search, the metric over each key, and all trials."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from drivetrain.job.sweep import Parameter
from drivetrain.report.blocks import Block, Details, Dot, Headline, Scatter, Section, Table, Text, Tile, Tone
from drivetrain.report.comparison import ABSENT
from drivetrain.report.formatting import align_numbers, format_duration, format_json, format_number
from drivetrain.report.log_series import has_wide_range
from drivetrain.report.render.page import write_pages
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import parse_number

State = Literal["done", "ended early", "failed"]
KINDS = (("ended early", Tone.QUIET), ("done", Tone.PLAIN), ("best", Tone.GOOD))
MIN_CORRELATED_TRIALS = 5
"""Finished trials from which a rank correlation is shown."""


@dataclass(frozen=True)
class Trial:
    """One trial: how it ended, and the metric of its best weights, or when it was ended."""

    number: int
    state: State
    value: float | None
    values: dict[str, JsonValue]
    """By key."""
    run: str
    """Its folder; empty if it was refused before it had one."""
    epochs: int | None
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class SweepResult:
    """All trials that have ended."""

    name: str
    metric: str
    lower: bool
    """Whether smaller is better."""
    parameters: tuple[Parameter, ...]
    trials: tuple[Trial, ...]
    total: int
    command: str = ""
    """Trains the best trial's job anew; empty if no trial is done."""
    file: str = ""
    """The best trial's job file; empty if there is none."""

    @property
    def best(self) -> Trial | None:
        """The best trial that is done, of equal ones the first."""
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(done, key=self._rank, default=None)

    def _rank(self, trial: Trial) -> tuple[float, int]:
        assert trial.value is not None
        return (trial.value if self.lower else -trial.value), trial.number

    def rank_trials(self) -> list[Trial]:
        """The best first; after those that are done the ones that were ended early, then the failed ones."""
        done = sorted((trial for trial in self.trials if trial.state == "done"), key=self._rank)
        return [*done, *(one for state in ("ended early", "failed") for one in self.trials if one.state == state)]

    def count(self, state: State) -> int:
        """How many trials ended in this way."""
        return sum(trial.state == state for trial in self.trials)

    def describe(self) -> str:
        """The result in a line."""
        best = self.best
        if best is None:
            return f"no trial is done: {self.count('failed')} failed, {self.count('ended early')} ended early"
        values = ", ".join(f"{key} {format_value(value)}" for key, value in best.values.items())
        command_hint = f"; to train with them: {self.command}" if self.command else ""
        return f"best of {len(self.trials)} trials: {self.metric} {format_number(best.value)} in trial {best.number}, {values}{command_hint}"


def format_value(value: JsonValue) -> str:
    """A value for tables and lines."""
    return f"{value:.4g}" if isinstance(value, float) else format_json(value)


def write(folder: Path, result: SweepResult) -> None:
    """Write sweep.html, sweep.md and sweep.json; raises StorageError if the folder cannot be written."""
    write_pages(RunFiles(folder), "sweep", _list_results(result), _make_headline(result), _make_sections(result))


def _list_results(result: SweepResult) -> dict[str, object]:
    return {
        "metric": result.metric,
        "direction": "minimize" if result.lower else "maximize",
        "total": result.total,
        "best": result.best.number if result.best else None,
        "command": result.command or None,
        "file": result.file or None,
        "trials": [asdict(trial) for trial in result.trials],
        "rank_correlation": dict(_compute_correlations(result)),
    }


def _make_headline(result: SweepResult) -> Headline:
    best, ended = result.best, len(result.trials)
    is_complete = ended >= result.total
    values = () if best is None else tuple(Tile(key, format_value(value)) for key, value in best.values.items())
    return Headline(
        run=f"{result.name}, sweep",
        what="lower is better" if result.lower else "higher is better",
        status="finished" if is_complete else f"{ended} of {result.total} trials",
        tone=Tone.GOOD if is_complete and best else Tone.WARN,
        ending=f"{result.count('done')} done, {result.count('ended early')} ended early, {result.count('failed')} failed",
        value=format_number(best.value) if best else "no result",
        label=f"{result.metric} of trial {best.number}, the best" if best else "no trial is done",
        tiles=values,
    )


def _make_sections(result: SweepResult) -> list[Section]:
    sections = [Section("best", "Best values", tuple(_list_best_values(result)))]
    if plots := tuple(_plot_search(result)):
        sections.append(Section("search", "Search", plots))
    below = Text("A trial that was ended early has the value of its last epoch.", Tone.QUIET)
    return [
        *sections,
        Section("trials", "Trials", (_make_trials_table(result), *([below] if result.count("ended early") else []))),
    ]


def _list_best_values(result: SweepResult) -> Iterator[Block]:
    best, correlations = result.best, dict(_compute_correlations(result))
    head = ("key", "best trial", "searched", *(["rank correlation"] if correlations else []))
    rows = []
    for parameter in result.parameters:
        value = format_value(best.values[parameter.key]) if best else ABSENT
        correlation = f"{correlations[parameter.key]:+.2f}" if parameter.key in correlations else ABSENT
        rows.append((parameter.key, value, _describe_range(parameter), *([correlation] if correlations else [])))
    yield Table(head, tuple(rows))
    if result.command:
        yield Details("The command that trains with these values", result.command)
    if result.file:
        yield Text(f"The job file with these values: {result.file}")
    yield Text(
        "The best of many trials is a little too good: it was chosen by the metric that it is given with. Data for a final "
        "test (data.test), or other seeds (drivetrain repeat), tell how good its values are.",
        Tone.QUIET,
    )
    if correlations:
        yield Text(
            f"The rank correlation (Spearman) of a key with {result.metric} over the {result.count('done')} trials that are "
            "done: +1 if it always grows with the value, -1 if it always falls; an optimum in the middle gives 0.",
            Tone.QUIET,
        )


def _describe_range(parameter: Parameter) -> str:
    if parameter.choices:
        return ", ".join(map(format_value, parameter.choices))
    scale = ", log scale" if parameter.log else ""
    step = f", step {format_number(parameter.step)}" if parameter.step else ""
    return f"{format_number(parameter.low)} to {format_number(parameter.high)}{scale}{step}"


def _plot_search(result: SweepResult) -> Iterator[Scatter]:
    """The course of the search, and the metric over each key."""
    trials = [trial for trial in result.trials if trial.value is not None]
    ys = [trial.value for trial in trials if trial.value is not None]
    if len(ys) < 2:
        return
    is_logarithmic = has_wide_range(ys)
    kinds = tuple(kind for kind in KINDS if any(_choose_kind(result, trial) == kind[0] for trial in trials))
    title = f"{format_json(result.metric)}{' (log scale)' if is_logarithmic else ''}"

    def dots(xs: Sequence[float | str]) -> tuple[Dot, ...]:
        return tuple(Dot(x, y, _choose_kind(result, t)) for x, y, t in zip(xs, ys, trials, strict=True))

    numbers = [float(trial.number) for trial in trials]
    best, name = tuple(_list_best_so_far(result)), f"{title} by trial, and the best so far"
    yield Scatter(name, "trial", dots(numbers), kinds, best, log_y=is_logarithmic)
    for parameter in result.parameters:
        values = [trial.values[parameter.key] for trial in trials]
        numbers_or_none = [None if parameter.choices else parse_number(value) for value in values]
        xs = [format_value(v) if x is None else x for v, x in zip(values, numbers_or_none, strict=True)]
        if parameter.choices:
            order = [format_value(choice) for choice in parameter.choices]
            order_by_choice = sorted(range(len(xs)), key=lambda i: order.index(str(xs[i])))
            every = dots(xs)
            sorted_dots = tuple(every[i] for i in order_by_choice)
        else:
            sorted_dots = dots(xs)
        yield Scatter(f"{title} by {parameter.key}", "", sorted_dots, kinds, log_x=parameter.log, log_y=is_logarithmic)


def _choose_kind(result: SweepResult, trial: Trial) -> str:
    return "best" if trial is result.best else trial.state


def _list_best_so_far(result: SweepResult) -> Iterator[tuple[float, float]]:
    best: float | None = None
    for trial in result.trials:
        if trial.state == "done" and trial.value is not None:
            is_better = best is None or (trial.value < best if result.lower else trial.value > best)
            best = trial.value if is_better else best
        if best is not None:
            yield float(trial.number), best


def _make_trials_table(result: SweepResult) -> Table:
    keys = [parameter.key for parameter in result.parameters]
    failed = any(trial.reason for trial in result.trials)
    rows, tones = [], {}
    ranked = result.rank_trials()
    value_texts = iter(align_numbers([trial.value for trial in ranked if trial.value is not None]))
    for index, trial in enumerate(ranked):
        values = (format_value(trial.values[key]) for key in keys)
        epochs = format_number(trial.epochs) if trial.epochs is not None else ABSENT
        time = format_duration(trial.seconds) if trial.seconds is not None else ABSENT
        value = next(value_texts) if trial.value is not None else ABSENT
        reason = (trial.reason,) if failed else ()
        rows.append((f"trial {trial.number}", value, trial.state, *values, epochs, time, *reason))
        tones[index] = Tone.GOOD if trial is result.best else Tone.PLAIN if trial.state == "done" else Tone.QUIET
    head = ("", result.metric, "state", *keys, "epochs", "time", *(["reason"] if failed else []))
    return Table(head, tuple(rows), tones)


def _compute_correlations(result: SweepResult) -> Iterator[tuple[str, float]]:
    """The rank correlation of every numeric key with the metric."""
    done = [trial for trial in result.trials if trial.state == "done" and trial.value is not None]
    if len(done) < MIN_CORRELATED_TRIALS:
        return
    ys = [float(trial.value) for trial in done if trial.value is not None]
    for parameter in result.parameters:
        values = [trial.values[parameter.key] for trial in done]
        xs = [x for value in values if (x := parse_number(value)) is not None]
        if len(xs) == len(ys) and len(set(xs)) > 1 and len(set(ys)) > 1:
            yield parameter.key, statistics.correlation(_rank(xs), _rank(ys))


def _rank(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal ones share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
