"""Renders a report as Markdown; plots become tables with a sparkline for each curve."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from drivetrain.report.blocks import (
    Block,
    Curves,
    Details,
    FoldedCurves,
    Gallery,
    Headline,
    Section,
    StackedBar,
    Table,
    Text,
    Tile,
    Tone,
)
from drivetrain.report.confusion import Confusion
from drivetrain.report.formatting import format_number, format_share
from drivetrain.tracking.live.sparkline import draw_bars

_MARKUP = re.compile(r"([\\`*|\[\]~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.)")
"""Characters that mean something; `_` only at the edge of a word."""
_LINE_START = re.compile(r"^(\d*)([#>+=-]|(?<=\d)[.)])")
MAX_MATRIX_CLASSES = 12
"""Largest confusion matrix that is shown as text; the HTML page has larger ones."""


def render_markdown(headline: Headline, sections: Sequence[Section]) -> str:
    """Write the headline and all sections as Markdown."""
    lines = [
        f"# {_escape(headline.run)}: {_escape(headline.value)}",
        f"{_escape_line(headline.label)}. {_escape(headline.what)}.",
        f"**{_escape(headline.status)}**: {_escape(headline.ending)}",
        *(["\n".join(f"- **{_escape(text)}**" for text, _ in headline.alerts)] if headline.alerts else []),
        _render_table(Table(("result", "value", ""), tuple(map(_render_tile, headline.tiles)))),
    ]
    for section in sections:
        # A section of blocks that only the page can show gets no title.
        if rendered := list(_render_blocks(section.blocks)):
            lines += [f"## {_escape(section.title)}", *rendered]
    return "\n\n".join(lines) + "\n"


def _render_tile(tile: Tile) -> tuple[str, str, str]:
    used = "" if tile.used is None else f" ({format_share(tile.used)})"
    return tile.label, tile.value, f"{tile.remark}{used}"


def _render_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield blocks in order as Markdown; adjacent plots share one table."""
    waiting: list[Curves] = []
    for block in blocks:
        if isinstance(block, Curves | FoldedCurves):
            waiting += block.plots if isinstance(block, FoldedCurves) else [block]
            continue
        if waiting:
            yield _render_curves(waiting)
            waiting = []
        yield from _render_block(block)
    if waiting:
        yield _render_curves(waiting)


def _render_block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{_escape(block.text)}**" if block.tone in (Tone.WARN, Tone.BAD) else _escape_line(block.text)
        case Table():
            yield _render_table(block)
        case Confusion():
            if len(block.classes) <= MAX_MATRIX_CLASSES:
                counts = zip(block.classes, block.matrix, strict=True)
                rows = tuple((name, *map(str, row)) for name, row in counts)
                yield _render_table(Table(("truth", *block.classes), rows))
        case StackedBar():
            total = sum(size for _, size, _ in block.parts) or 1.0
            rows = tuple((name, text, format_share(size / total)) for name, size, text in block.parts)
            yield _render_table(Table((block.title, "time", "share"), rows))
        case Gallery():
            cells = tuple((photo.title, photo.truth, photo.answer, photo.probability) for photo in block.photos)
            yield _render_table(Table(("sample", "true class", "predicted", "probability"), cells))
        case Details():
            # The fence must be longer than any row of backticks in the text.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{_escape_line(block.title)}:\n\n{fence}yaml\n{block.text.rstrip()}\n{fence}"
        case _:
            pass  # scatter plots are on the HTML page only


def _render_curves(plots: Sequence[Curves]) -> str:
    rows = []
    for plot in plots:
        for series in plot.series:
            if not series:
                continue
            name = plot.title if len(plot.series) == 1 else f"{plot.title}: {series.name}"
            values = (series.ys[0], min(series.ys), max(series.ys), series.ys[-1])
            shape = series.map_values(math.log) if plot.logarithmic else series
            rows.append((name, draw_bars(shape.ys, 32), *map(format_number, values)))
        if plot.limit:
            limit_name, limit = plot.limit
            rows.append((f"{plot.title}: {limit_name}", "", "", "", format_number(limit), ""))
    return _render_table(Table(("curve", "shape", "first", "lowest", "highest", "last"), tuple(rows)))


def _render_table(table: Table) -> str:
    head = [_escape(column) for column in table.columns]
    rule = ["---" for _ in table.columns]
    rows = [
        [f"**{text}**" if text and table.tones.get(index) == Tone.WARN else text for text in map(_escape, row)]
        for index, row in enumerate(table.rows)
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *rows])


def _escape(text: str) -> str:
    """Replace all Markdown markup by its escaped form, also in addresses, which some readers turn into links."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _escape_line(text: str) -> str:
    """Replace the markup of a text that begins a line, where it could be a heading, a list, a quote or a rule."""
    return _LINE_START.sub(r"\1\\\2", _escape(text))
