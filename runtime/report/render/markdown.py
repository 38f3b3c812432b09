"""Renders a report as Markdown; plots become tables with a sparkline for each curve."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from runtime.report.blocks import (
    Block,
    ConfusionMatrix,
    Curves,
    Details,
    Gallery,
    Headline,
    Section,
    StackedBar,
    Table,
    Text,
    Tile,
    Tone,
)
from runtime.report.formatting import number, share
from runtime.tracking.live.sparkline import bars


def markdown(headline: Headline, sections: Sequence[Section]) -> str:
    """Render the whole text."""
    lines = [
        f"# {_text(headline.run)}: {_text(headline.value)}",
        f"{_text(headline.label)}. {_text(headline.what)}.",
        f"**{_text(headline.status)}**: {_text(headline.ending)}",
        *([_list(text for text, _ in headline.alerts)] if headline.alerts else []),
        _table(Table(("result", "value", ""), tuple(map(_tile, headline.tiles)))),
    ]
    for section in sections:
        if found := list(_blocks(section.blocks)):  # scatter plots are in the page alone
            lines += [f"## {_text(section.title)}", *found]
    return "\n\n".join(lines) + "\n"


def _tile(tile: Tile) -> tuple[str, str, str]:
    used = "" if tile.used is None else f" ({share(tile.used)})"
    return tile.label, tile.value, f"{tile.remark}{used}"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    """Render blocks in order; adjacent plots share one table."""
    waiting: list[Curves] = []
    for block in blocks:
        if isinstance(block, Curves):
            waiting.append(block)
            continue
        if waiting:
            yield _curves(waiting)
            waiting = []
        yield from _block(block)
    if waiting:
        yield _curves(waiting)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{_text(block.text)}**" if block.tone in (Tone.WARN, Tone.BAD) else _text(block.text)
        case Table():
            yield _table(block)
        case ConfusionMatrix():
            if len(block.confusion.classes) <= 12:
                counts = zip(block.confusion.classes, block.confusion.matrix, strict=True)
                rows = tuple((name, *map(str, row)) for name, row in counts)
                yield _table(Table(("truth", *block.confusion.classes), rows))
        case StackedBar():
            total = sum(size for _, size, _ in block.parts) or 1.0
            rows = tuple((name, text, share(size / total)) for name, size, text in block.parts)
            yield _table(Table((block.title, "time", "share"), rows))
        case Gallery():
            cells = tuple((photo.title, photo.truth, photo.answer, photo.sure) for photo in block.photos)
            yield _table(Table(("sample", "true class", "predicted", "probability"), cells))
        case Details():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{_text(block.title)}:\n\n{fence}yaml\n{block.text.rstrip()}\n{fence}"


def _curves(frames: Sequence[Curves]) -> str:
    rows = []
    for frame in frames:
        for series in frame.series:
            if not series:
                continue
            name = frame.title if len(frame.series) == 1 else f"{frame.title}: {series.name}"
            values = (series.ys[0], min(series.ys), max(series.ys), series.ys[-1])
            shape = series.mapped(math.log) if frame.logarithmic else series
            rows.append((name, bars(shape.ys, 32), *map(number, values)))
        if frame.limit:
            rows.append((f"{frame.title}: {frame.limit[0]}", "", "", "", number(frame.limit[1]), ""))
    return _table(Table(("curve", "shape", "first", "lowest", "highest", "last"), tuple(rows)))


def _table(table: Table) -> str:
    lines = [table.columns, tuple("---" for _ in table.columns)]
    lines += [
        tuple(f"**{text}**" if text and table.tones.get(index) == Tone.WARN else text for text in map(_text, row))
        for index, row in enumerate(table.rows)
    ]
    head, rule, *rows = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in [tuple(map(_text, head)), rule, *rows])


def _list(items: Iterator[str]) -> str:
    return "\n".join(f"- **{_text(item)}**" for item in items)


def _text(text: str) -> str:
    """Escape all Markdown markup."""
    text = re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")
