"""The content of a report as blocks, independent of the output format (HTML page or Markdown)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drivetrain.report.confusion import Confusion
from drivetrain.report.log_series import Point, Series, has_wide_range
from drivetrain.system.printable import printable


class Tone(StrEnum):
    """How much a line stands out."""

    PLAIN = "plain"
    QUIET = "quiet"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; `tones` by row number."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tones: Mapping[int, Tone] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """Series in one plot, over `axis`."""

    title: str
    axis: str
    series: tuple[Series, ...]
    limit: tuple[str, float] | None = None
    """A limit with its name, drawn as a line."""
    marks: tuple[tuple[str, float], ...] = ()
    """Names and places on the axis of vertical lines: where an earlier run ended, which weights were kept."""
    from_zero: bool = False
    logarithmic: bool = False

    @classmethod
    def make_for_metric(
        cls, title: str, axis: str, kind: str, series: Sequence[Series], marks: Sequence[tuple[str, float]] = ()
    ) -> Curves:
        """Make a plot of a kind of metric; a loss or a gradient norm with a wide range gets a logarithmic scale."""
        can_be_logarithmic = kind.endswith("loss") or kind == "grad_norm"
        if can_be_logarithmic and has_wide_range(y for curve in series for y in curve.ys):
            return cls(f"{title} (log scale)", axis, tuple(series), marks=tuple(marks), logarithmic=True)
        return cls(title, axis, tuple(series), marks=tuple(marks))


@dataclass(frozen=True)
class FoldedCurves:
    """Plots that the page shows only on demand."""

    title: str
    plots: tuple[Curves, ...]


@dataclass(frozen=True)
class Scatter:
    """Named points of a scatter plot, over `axis`, with a line where both values are the same."""

    title: str
    axis: str
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class SamplePicture:
    """A sample: its name, true and predicted class, the prediction's probability, and its picture as a data URL."""

    title: str
    truth: str
    answer: str
    probability: str
    data: str = ""


@dataclass(frozen=True)
class Gallery:
    """Samples side by side."""

    photos: tuple[SamplePicture, ...]


@dataclass(frozen=True)
class StackedBar:
    """A stacked bar of parts, as (name, size, size as text)."""

    title: str
    parts: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Details:
    """Preformatted text, collapsed."""

    title: str
    text: str


Block = Text | Table | Curves | FoldedCurves | Scatter | Confusion | StackedBar | Details | Gallery


@dataclass(frozen=True)
class Section:
    """A heading with its blocks. `anchor` is the target of links."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    is_folded: bool = False
    """Whether the page shows its blocks on demand: they say how the run was made, not how good the model is."""

    @classmethod
    def make_for_head(cls, anchor: str, title: str, head: str, blocks: Sequence[Block]) -> Section:
        """Make a section on one head; the only head of a job has no name."""
        name = printable(head)
        anchor, title = (f"{anchor}-of-{name}", f"{title} of {name}") if name else (anchor, title)
        return cls(anchor.replace(" ", "-"), title, tuple(blocks))


@dataclass(frozen=True)
class Tile:
    """A headline number: name, value, remark, and its share of a limit (0..1)."""

    label: str
    value: str
    remark: str = ""
    used: float | None = None


@dataclass(frozen=True)
class Headline:
    """The result at a glance."""

    run: str
    what: str
    status: str
    ending: str
    """How the run ended, in one sentence."""
    value: str
    label: str
    is_score: bool = True
    """Whether the value is one that a person reads; a loss is not, and is shown smaller."""
    tone: Tone = Tone.PLAIN
    tiles: tuple[Tile, ...] = ()
    alerts: tuple[tuple[str, str], ...] = ()
    """Warnings that must not be missed, as (text, anchor)."""
