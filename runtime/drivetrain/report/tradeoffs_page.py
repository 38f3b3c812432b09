"""The page of `drivetrain tradeoffs`: what each variant of a job takes in time and memory, and what it does to the metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain.job.formatting import format_metric
from drivetrain.report.blocks import Dot, Headline, Scatter, Section, Table, Text, Tone
from drivetrain.report.comparison import ABSENT
from drivetrain.report.formatting import format_duration, format_number, format_share
from drivetrain.report.render.page import write_pages
from drivetrain.system.run_files import RunFiles
from drivetrain.system.units import format_bytes

LEFT, COMPARED, FRONT = "ended after a share of the epochs", "trained longest", "no other is faster and as good"
KINDS = ((LEFT, Tone.QUIET), (COMPARED, Tone.PLAIN), (FRONT, Tone.GOOD))


@dataclass(frozen=True)
class Line:
    """A variant; numbers are None if it was not trained."""

    name: str
    values: str
    """The changed keys, as a job file has them; empty for the job as it is."""
    options: str
    """The same for the command line."""
    epoch_seconds: float | None
    seconds: float | None
    """Of the whole training, from command to end."""
    value: float | None
    """Of the metric, after `share` of the epochs."""
    difference: tuple[float, float, int] | None
    """By how much the metric is better than that of the job as it is after as many epochs: mean and deviation over seeds, seeds."""
    share: float
    peak_bytes: float | None
    is_front: bool
    failure: str = ""

    def format_difference(self) -> str:
        """`-0.012 ± 0.004 (3 seeds)`."""
        if self.difference is None or not self.values:
            return ABSENT
        mean, deviation, seeds = self.difference
        spread = f" ± {deviation:.2g} ({seeds} seeds)" if seeds > 1 else ""
        return f"{mean:+.4f}{spread}"


@dataclass(frozen=True)
class Result:
    """All variants, the job as it is first."""

    name: str
    metric: str
    lines: tuple[Line, ...]

    def describe(self) -> Iterator[str]:
        """A line for each variant, the fastest first, and what to do with them."""
        for line in self.sort_lines():
            if line.seconds is None or line.value is None:
                yield f"{line.name}: not measured" + (f": {line.failure}" if line.failure else "")
                continue
            mark = "* " if line.is_front else "  "
            changes = f" ({line.values})" if line.values else ""
            yield (
                f"{mark}{line.name}{changes}: {self.format_time(line)}, {self.metric} {format_metric(line.value)} after "
                f"{format_share(line.share)} of the epochs"
                + (f", difference {line.format_difference()}" if line.values else "")
                + (f"; then {line.failure}" if line.failure else "")
            )
        yield "* no other variant is faster and as good; their values are for you to choose: they change what is learned"

    def sort_lines(self) -> list[Line]:
        """The fastest first."""
        return sorted(self.lines, key=lambda line: (line.seconds is None, line.seconds or 0.0))

    def format_time(self, line: Line) -> str:
        """The time of the whole training, and its share of that of the job as it is."""
        base = self.lines[0].seconds
        assert line.seconds is not None
        share = f" ({format_share(line.seconds / base)})" if base and line.values else ""
        return f"{format_duration(line.seconds)}{share}"


def write(folder: Path, result: Result) -> None:
    """Write tradeoffs.html, tradeoffs.md and tradeoffs.json; raises StorageError if the folder cannot be written."""
    headline, sections = _make_headline(result), list(_make_sections(result))
    write_pages(RunFiles(folder), "tradeoffs", asdict(result), headline, sections)


def _make_headline(result: Result) -> Headline:
    front = [line for line in result.lines if line.is_front]
    base = result.lines[0]
    return Headline(
        run=f"{result.name}, tradeoffs",
        what="what each change saves in time, and what it does to the model",
        status=f"{len(result.lines) - 1} variants",
        ending="trained with the same seed and data; nothing of the job was changed",
        value=format_number(base.value),
        label=f"{result.metric} of the job as it is, after {format_share(base.share)} of its epochs",
        alerts=() if front else (("no variant was measured", "variants"),),
    )


def _make_sections(result: Result) -> Iterator[Section]:
    yield Section("variants", "Variants", (_make_table(result), *_make_notes(result)))
    longest = max(line.share for line in result.lines)
    dots = [
        Dot(line.seconds, line.difference[0], FRONT if line.is_front else COMPARED if line.share == longest else LEFT)
        for line in result.lines
        if line.seconds is not None and line.difference
    ]
    if len(dots) > 1:
        front = tuple(
            (line.seconds, line.difference[0])
            for line in result.sort_lines()
            if line.is_front and line.seconds is not None and line.difference
        )
        kinds = tuple(kind for kind in KINDS if any(dot.kind == kind[0] for dot in dots))
        title = f"{result.metric}: better or worse than the job as it is, by the seconds of the whole training"
        yield Section("front", "Time and quality", (Scatter(title, "seconds", tuple(dots), kinds, front),))


def _make_table(result: Result) -> Table:
    rows, tones = [], {}
    for index, line in enumerate(result.sort_lines()):
        if line.seconds is None or line.value is None:
            numbers = (ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, line.failure or "no time left")
        else:
            numbers = (
                result.format_time(line),
                format_duration(line.epoch_seconds),
                format_bytes(int(line.peak_bytes)) if line.peak_bytes else ABSENT,
                format_metric(line.value),
                line.format_difference(),
                format_share(line.share),
            )
        rows.append((line.name, line.values or ABSENT, *numbers))
        tones[index] = Tone.GOOD if line.is_front else Tone.PLAIN if line.value is not None else Tone.QUIET
    head = ("variant", "values", "whole training", "an epoch", "memory", result.metric, "difference", "epochs trained")
    return Table(head, tuple(rows), tones)


def _make_notes(result: Result) -> Iterator[Text]:
    yield Text(
        "The difference is that to the job as it is after the same share of its epochs: above 0 the variant is better. A variant that "
        "was trained for fewer epochs than others was not among the better half. Without a ± it is one seed: differences of a few "
        "validation samples are chance.",
        Tone.QUIET,
    )
    if lines := [line for line in result.lines if line.is_front and line.options]:
        choices = "; ".join(f"{line.name}: {line.options}" for line in lines)
        yield Text(
            f"Nothing was changed in the job. To train with one of the variants that no other beats: {choices}",
            Tone.QUIET,
        )
