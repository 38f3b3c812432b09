"""The content of a report as blocks, independent of the output format (HTML page or Markdown)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drivetrain.report.confusion import Confusion
from drivetrain.report.log_series import Series

MAX_NARROW_WIDTH = 64
"""Characters in a row of a table that fits on any screen."""


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

    @property
    def is_wide(self) -> bool:
        """Return whether it needs the whole width; on a small screen its rows become lists."""
        widths = (max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True))
        return sum(widths) > MAX_NARROW_WIDTH


@dataclass(frozen=True)
class Chart:
    """Lines over `axis`, or in a scatter plot dots and a line where both values are the same."""

    title: str
    axis: str
    lines: tuple[Series, ...]
    limit: tuple[str, float] | None = None
    """A limit with its name, drawn as a line."""
    marks: tuple[tuple[str, float], ...] = ()
    """Names and places on the axis of vertical lines: where an earlier run ended, which weights were kept."""
    from_zero: bool = False
    is_logarithmic: bool = False
    is_scatter: bool = False


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
class Details:
    """Preformatted text, collapsed."""

    title: str
    text: str


Block = Text | Table | Chart | Confusion | Details | Gallery


@dataclass(frozen=True)
class Section:
    """A heading with its blocks."""

    title: str
    blocks: Sequence[Block]
    is_folded: bool = False
    """Whether the page shows its blocks on demand: they say how the run was made, not how good the model is."""


@dataclass(frozen=True)
class Tile:
    """A headline number: name, value, and remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Headline:
    """The result at a glance."""

    run: str
    subject: str
    status: str
    ending: str
    """How the run ended, in one sentence."""
    value: str
    label: str
    """The samples behind the value, its metric, and when it was reached."""
    verdict: str = ""
    """The simple models beside it."""
    is_score: bool = True
    """Whether the value is one that a person reads; a loss is not, and is shown smaller."""
    tone: Tone = Tone.PLAIN
    tiles: tuple[Tile, ...] = ()
    alerts: tuple[str, ...] = ()
    """Warnings that must not be missed."""


def title_of_head(title: str, head: str) -> str:
    """Name the head in the title of its section; the only head of a job has no name."""
    return f"{title} of {head}" if head else title
