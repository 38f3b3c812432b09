"""Renders a report as one self-contained HTML file: no scripts, no requests, light and dark mode."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from runtime.report.blocks import (
    Block,
    ConfusionMatrix,
    Curves,
    Details,
    Gallery,
    Headline,
    SamplePicture,
    Scatter,
    Section,
    StackedBar,
    Table,
    Text,
    Tile,
    Tone,
)
from runtime.report.formatting import aligned, share
from runtime.report.log_series import Series
from runtime.report.render.confusion_svg import matrix
from runtime.report.render.curves_svg import SHADES, curves
from runtime.report.render.scatter_svg import scatter
from runtime.report.render.style import STYLE

SHORT = 28
"""Characters up to which cells of a column are not wrapped."""
_UNITS = "%|s|ms|min|h|x|B|KiB|MiB|GiB|TiB|[kMGT]?FLOP|W|MHz|°C|degrees|CPUs?|cores?|threads?|samples/s|epochs?"
_NUMBER = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")

# With this policy the browser blocks anything that would load from elsewhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(headline: Headline, sections: Sequence[Section]) -> str:
    """Render the whole page."""
    title = escape(f"{headline.run}: {headline.value}")
    body = "\n".join([_headline(headline, sections), *map(_section, sections)])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def escape(text: str) -> str:
    """Escape text for HTML; a number and its unit stay on one line."""
    return html.escape(_NUMBER.sub("\N{NO-BREAK SPACE}", text))


def _headline(headline: Headline, sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{escape(s.anchor)}">{escape(s.title)}</a>' for s in sections)
    alerts = "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for text, anchor in headline.alerts)
    return f"""<header>
<p class="what"><strong>{escape(headline.run)}</strong> {escape(headline.what)}</p>
<h1>{escape(headline.value)}</h1>
<p class="label">{escape(headline.label)}</p>
<p class="ending"><span class="badge {headline.tone}">{escape(headline.status)}</span> {escape(headline.ending)}</p>
{f'<ul class="alerts">{alerts}</ul>' if alerts else ""}
<dl class="tiles">{"".join(map(_tile, headline.tiles))}</dl>
<nav>{links}</nav>
</header>"""


def _tile(tile: Tile) -> str:
    meter = ""
    if tile.used is not None:
        tight = " tight" if tile.used > 0.9 else ""
        width = min(100.0, 100 * tile.used)
        meter = f'<div class="meter{tight}"><i style="width:{width:.1f}%"></i></div>'
    remark = f"<small>{escape(tile.remark)}</small>" if tile.remark else ""
    label = escape(tile.label).replace("/", "/<wbr>").replace("_", "_<wbr>")
    return f"<div><dt>{label}</dt><dd>{escape(tile.value)} {remark}{meter}</dd></div>"


def _section(section: Section) -> str:
    anchor = escape(section.anchor)
    body = "\n".join(_blocks(section, anchor))
    return f'<section id="{anchor}">\n<h2>{escape(section.title)}</h2>\n{body}\n</section>'


def _blocks(section: Section, anchor: str) -> Iterator[str]:
    """Render blocks in order; adjacent plots, and adjacent small blocks, are placed side by side."""
    numbered = enumerate(section.blocks)
    for lane, group in groupby(numbered, key=lambda item: _lane(item[1])):
        body = "\n".join(_block(block, f"{anchor}-{index}") for index, block in group)
        yield f'<div class="{lane}">{body}</div>' if lane else body


def _lane(block: Block) -> str:
    if isinstance(block, Curves | Scatter):
        return "frames"
    return "beside" if isinstance(block, ConfusionMatrix) or (isinstance(block, Table) and not _wide(block)) else ""


def _wide(table: Table) -> bool:
    return len(table.columns) > 2 and any(len(text) > 24 for row in table.rows for text in row)


def _block(block: Block, name: str) -> str:
    match block:
        case Text():
            return f'<p class="{block.tone}">{escape(block.text)}</p>'
        case Table():
            return _table(block)
        case Curves():
            last = iter(aligned([series.ys[-1] for series in block.series if series]))
            legend = "".join(
                _legend(series, next(last) if series else "", i % SHADES + 1) for i, series in enumerate(block.series)
            )
            caption = f"<figcaption><b>{escape(block.title)}</b><span>{legend}</span></figcaption>"
            return f'<figure class="frame">{caption}{curves(block, name)}</figure>'
        case Scatter():
            legend = "".join(f'<span class="key tone-{tone}">{escape(kind)}</span>' for kind, tone in block.kinds)
            caption = f"<figcaption><b>{escape(block.title)}</b><span>{legend}</span></figcaption>"
            return f'<figure class="frame">{caption}{scatter(block, name)}</figure>'
        case ConfusionMatrix():
            return _matrix(block)
        case StackedBar():
            return _bar(block)
        case Gallery():
            return f'<div class="gallery">{"".join(map(_photo, block.photos))}</div>'
        case Details():
            return f"<details><summary>{escape(block.title)}</summary><pre>{escape(block.text)}</pre></details>"


def _legend(series: Series, last: str, shade: int) -> str:
    value = f" {last}" if series else ""
    broken = f", {series.broken} not finite" if series.broken else ""
    return f'<span class="key line-{shade}">{escape(series.name)}<em>{value}</em>{broken}</span>'


def _table(table: Table) -> str:
    kind = "wide" if _wide(table) else "narrow"
    lines = (table.columns, *table.rows)
    short = [_kind(cells) for cells in zip(*lines, strict=True)]
    head = "".join(f"<th{mark}>{escape(column)}</th>" for column, mark in zip(table.columns, short, strict=True))
    rows = []
    for index, row in enumerate(table.rows):
        named = zip(table.columns, short, row, strict=True)
        cells = "".join(f'<td{mark} data-name="{escape(name)}">{escape(text)}</td>' for name, mark, text in named)
        rows.append(f'<tr class="{table.tones.get(index, Tone.PLAIN)}">{cells}</tr>')
    body = "\n".join(rows)
    inner = f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll">{inner}</div>'


def _kind(cells: Sequence[str]) -> str:
    """The class of a column, given its head and cells: single words, such as the names of runs, are never broken."""
    if max(map(len, cells)) > SHORT:
        return ""
    return ' class="short"' if any(" " in text for text in cells[1:]) else ' class="short word"'


def _matrix(block: ConfusionMatrix) -> str:
    picture, width = matrix(block.confusion)
    # A matrix of few classes shrinks with the screen; a large one keeps its size and scrolls.
    least = 0 if len(block.confusion.classes) <= 12 else width
    style = f"width:{width}px;min-width:{least}px;max-width:{'100%' if not least else 'none'}"
    return f'<div class="matrix"><div style="{style}">{picture}</div></div>'


def _photo(photo: SamplePicture) -> str:
    title, truth, answer, sure = map(escape, (photo.title, photo.truth, photo.answer, photo.sure))
    caption = f"true {truth}, predicted <strong>{answer}</strong><br><i>{sure} probability</i>"
    picture = f'<img src="{escape(photo.data)}" alt="{title}" title="{title}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _bar(bar: StackedBar) -> str:
    total = sum(size for _, size, _ in bar.parts) or 1.0
    parts, keys = [], []
    largest = sorted(sorted(range(len(bar.parts)), key=lambda index: -bar.parts[index][1])[:SHADES])
    for index, (name, size, text) in enumerate(bar.parts):
        shade = f"line-{largest.index(index) + 1}" if index in largest else "tone-quiet"
        parts.append(f'<i class="{shade}" style="flex-grow:{size / total:.4f}"></i>')
        keys.append(f'<span class="key {shade}">{escape(name)}<em> {escape(text)}, {share(size / total)}</em></span>')
    title = f"<figcaption><b>{escape(bar.title)}</b><span>{''.join(keys)}</span></figcaption>"
    return f'<figure class="bar">{title}<div>{"".join(parts)}</div></figure>'
