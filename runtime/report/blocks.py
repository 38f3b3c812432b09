"""Blocks: the content of a report, free of any format. The page and the Markdown are two ways to write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from runtime.report.confusion import Confusion
from runtime.report.log_series import Series


class Tone(StrEnum):
    """How much a line should stand out."""

    PLAIN = "plain"
    QUIET = "quiet"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Text:
    """One paragraph."""

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
    """Series in one frame, along `axis`."""

    title: str
    axis: str
    series: tuple[Series, ...]
    limit: tuple[str, float] | None = None
    """A bound with its name, drawn as a line."""
    from_zero: bool = False
    logarithmic: bool = False


@dataclass(frozen=True)
class ConfusionMatrix:
    """A confusion matrix as a picture."""

    confusion: Confusion


@dataclass(frozen=True)
class SamplePicture:
    """A sample: what it is called, what it is and was taken for, how surely, and its picture as a data address."""

    title: str
    truth: str
    answer: str
    sure: str
    data: str = ""


@dataclass(frozen=True)
class Gallery:
    """Samples side by side."""

    photos: tuple[SamplePicture, ...]


@dataclass(frozen=True)
class StackedBar:
    """Parts of a whole, as (name, size, size as text)."""

    title: str
    parts: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Details:
    """Preformatted text that opens on demand."""

    title: str
    text: str


Block = Text | Table | Curves | ConfusionMatrix | StackedBar | Details | Gallery


@dataclass(frozen=True)
class Section:
    """A heading with its blocks. `anchor` is the name that links lead to."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tile:
    """A number of the headline: what it is, the value, a remark, and how much of its bound is used (0..1)."""

    label: str
    value: str
    remark: str = ""
    used: float | None = None


@dataclass(frozen=True)
class Headline:
    """The result in one look."""

    run: str
    what: str
    status: str
    tone: Tone
    ending: str
    """How the run ended, in a sentence."""
    value: str
    label: str
    tiles: tuple[Tile, ...]
    alerts: tuple[tuple[str, str], ...]
    """What a reader must not overlook, as (text, anchor)."""
