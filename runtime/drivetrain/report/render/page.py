"""Renders a report as one self-contained HTML file: no scripts, no requests, light and dark mode."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from drivetrain.report.blocks import (
    Block,
    Curves,
    Details,
    FoldedCurves,
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
from drivetrain.report.confusion import Confusion
from drivetrain.report.formatting import align_numbers, format_share, to_strict_json
from drivetrain.report.log_series import Series
from drivetrain.report.render.markdown import render_markdown
from drivetrain.report.render.plot_svg import LINE_COLORS, draw_curves, draw_matrix, draw_scatter
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import RunFiles

UNWRAPPED_LENGTH = 28
"""Characters up to which cells of a column are not wrapped."""
_UNITS = "%|s|ms|min|h|x|B|KiB|MiB|GiB|TiB|[kMGT]?FLOP|W|MHz|°C|degrees|CPUs?|cores?|threads?|samples/s|epochs?"
_NUMBER = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")

# With this policy the browser blocks anything that would load from elsewhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
COLORS = """
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #ffffff; --ink: #16181d; --muted: #5f6368; --grid: #dcdcd6; --soft: #efefea;
  --good: #0b7a3e; --warn: #8a5300; --bad: #b3261e; --warn-soft: #fdf1da; --link: #1d5fb8;
  --line-1: #2a78d6; --line-2: #e0602a; --line-3: #16936a; --line-4: #a97400; --line-5: #cc4f86; --line-6: #6a55c8;
  --line-7: #1d8a96; --line-8: #c23b3b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131416; --card: #1c1d20; --ink: #eceae4; --muted: #a3a39c; --grid: #383a3e; --soft: #25272b;
    --good: #57c98a; --warn: #efb14e; --bad: #f2877d; --warn-soft: #362a14; --link: #7db3f5;
    --line-1: #5a9df0; --line-2: #f08552; --line-3: #3fbd92; --line-4: #d9a32c; --line-5: #e57fae; --line-6: #a494f2;
    --line-7: #4bbdc9; --line-8: #ee7b7b;
  }
}
"""
STYLE = (
    f"{COLORS}"
    """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 64px; }
header, section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
  padding: 20px 24px; margin-bottom: 16px; }
h1 { font-size: 56px; line-height: 1.1; margin: 6px 0 0; font-weight: 650; letter-spacing: -0.02em;
  overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 12px; font-weight: 600; }
p { margin: 0 0 10px; overflow-wrap: anywhere; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
.what, .label { color: var(--muted); margin: 0; }
.what strong { color: var(--ink); }
.ending { margin: 12px 0 0; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 999px; border: 1px solid currentColor;
  font-weight: 600; font-size: 13px; margin-right: 4px; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); } .quiet { color: var(--muted); }
.alerts { margin: 14px 0 0; padding: 10px 14px 10px 30px; background: var(--warn-soft); border-radius: 8px; }
.alerts a { color: var(--warn); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 16px 18px; margin: 20px 0 0; }
.tiles dt { color: var(--muted); font-size: 13px; overflow-wrap: anywhere; }
.tiles dd { margin: 0; font-size: 21px; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-size: 13px; font-weight: 400; white-space: normal; color: var(--muted); }
.meter { height: 5px; border-radius: 3px; background: var(--grid); margin-top: 4px; overflow: hidden; }
.meter i { display: block; height: 100%; background: var(--line-1); }
.meter.tight i { background: var(--bad); }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 18px; padding-top: 12px; font-size: 14px;
  border-top: 1px solid var(--grid); }
.frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 20px 28px; }
.frames + p, .frames + details { margin-top: 14px; }
details > .frames { margin-top: 12px; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 14px; }
figcaption b { font-weight: 600; display: block; }
figcaption > span { display: flex; flex-wrap: wrap; gap: 0 14px; color: var(--muted); font-size: 13px; }
.key::before { content: ""; display: inline-block; width: 12px; height: 4px; border-radius: 2px; margin-right: 6px;
  vertical-align: 3px; background: var(--shade); }
.key em { font-style: normal; color: var(--ink); font-variant-numeric: tabular-nums; }
.line-1 { --shade: var(--line-1); } .line-2 { --shade: var(--line-2); } .line-3 { --shade: var(--line-3); }
.line-4 { --shade: var(--line-4); } .line-5 { --shade: var(--line-5); } .line-6 { --shade: var(--line-6); }
.line-7 { --shade: var(--line-7); } .line-8 { --shade: var(--line-8); }
.tone-plain { --shade: var(--line-1); } .tone-quiet { --shade: var(--muted); } .tone-good { --shade: var(--line-3); }
.frame svg { display: block; width: 100%; height: auto; stroke-linejoin: round; font-variant-numeric: tabular-nums; }
.bar { margin-bottom: 24px; }
.bar > div { display: flex; gap: 2px; height: 18px; margin-top: 8px; border-radius: 4px; overflow: hidden; }
.bar i { background: var(--shade); flex-basis: 0; min-width: 1px; }
.beside { display: flex; flex-wrap: wrap; gap: 4px 40px; align-items: flex-start; }
.beside > * { min-width: 0; }
.matrix { overflow-x: auto; margin: 4px 0 18px; max-width: 100%; }
.matrix svg { display: block; width: 100%; height: auto; }
.matrix image { image-rendering: pixelated; }
.matrix .frame { fill: none; stroke: var(--grid); }
.matrix text { fill: var(--ink); dominant-baseline: central; font-variant-numeric: tabular-nums; }
.matrix .axis { fill: var(--muted); font-size: 12px; text-anchor: middle; }
.matrix .row { text-anchor: end; }
.matrix .column { text-anchor: middle; dominant-baseline: auto; }
.matrix .turned { text-anchor: start; }
.matrix .count { text-anchor: middle; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(128px, 1fr)); gap: 18px; margin-bottom: 16px; }
.gallery figure { margin: 0; min-width: 0; }
.gallery img { display: block; width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated;
  background: var(--soft); border-radius: 6px; }
.gallery figcaption { display: block; margin-top: 6px; font-size: 13px; line-height: 1.35; overflow-wrap: anywhere; }
.gallery i { color: var(--muted); font-style: normal; }
.scroll { overflow-x: auto; max-width: 100%; margin: 0 0 16px;
  background: linear-gradient(to right, var(--card) 12px, transparent) 0 0 / 36px 100% no-repeat local,
    linear-gradient(to left, var(--card) 12px, transparent) 100% 0 / 36px 100% no-repeat local,
    linear-gradient(to right, var(--grid), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--grid), transparent) 100% 0 / 12px 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
table.wide { width: 100%; }
th { text-align: left; font-weight: 500; color: var(--muted); font-size: 13px; padding: 4px 18px 4px 0; }
td { padding: 6px 18px 6px 0; border-top: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
td.short, th.short { white-space: nowrap; }
table.narrow td { overflow-wrap: normal; }
th:last-child, td:last-child { padding-right: 0; }
td:first-child { font-weight: 500; }
tr.quiet td { color: var(--muted); }
tr.good td { color: var(--good); }
tr.warn td { background: var(--warn-soft); color: var(--warn); }
tr.warn td:first-child { box-shadow: inset 3px 0 var(--warn); padding-left: 10px; }
details { border-top: 1px solid var(--grid); padding-top: 10px; }
summary { cursor: pointer; }
section > details { border: 0; padding: 0; }
section > details > summary > h2 { display: inline; }
section > details[open] > summary { margin-bottom: 12px; }
pre { overflow-x: auto; background: var(--soft); padding: 14px; border-radius: 8px; font-size: 13px; line-height: 1.45;
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
@media (max-width: 700px) {
  main { padding: 10px 10px 40px; }
  header, section { padding: 14px; margin-bottom: 10px; }
  h1 { font-size: 42px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 12px; }
  table.wide thead { display: none; }
  table.wide tr { display: block; border-top: 1px solid var(--grid); padding: 8px 0; }
  table.wide td { display: flow-root; white-space: normal; border: 0; padding: 1px 0 1px 98px; }
  table.wide td:first-child { padding-left: 0; font-weight: 600; }
  table.wide td:not(:first-child)::before { content: attr(data-name); color: var(--muted); font-size: 13px;
    float: left; margin-left: -98px; width: 90px; }
  table.wide td:empty { display: none; }
  table.wide tr.warn { background: var(--warn-soft); padding: 8px; }
  tr.warn td:first-child { box-shadow: none; }
  table.narrow td, table.narrow th { padding-right: 9px; font-size: 12.5px; }
  table.narrow td.short:not(.word, :first-child), table.narrow th.short { white-space: normal; }
}
@media print { body { background: none; } header, section { border: 0; break-inside: avoid; } }
"""
)


def render_page(headline: Headline, sections: Sequence[Section]) -> str:
    """Render the whole page."""
    title = escape(f"{headline.run}: {headline.value}")
    body = "\n".join([_render_headline(headline, sections), *map(_render_section, sections)])
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


def _render_headline(headline: Headline, sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{escape(s.anchor)}">{escape(s.title)}</a>' for s in sections)
    alerts = "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for text, anchor in headline.alerts)
    return f"""<header>
<p class="what"><strong>{escape(headline.run)}</strong> {escape(headline.what)}</p>
<h1>{escape(headline.value)}</h1>
<p class="label">{escape(headline.label)}</p>
<p class="ending"><span class="badge {headline.tone}">{escape(headline.status)}</span> {escape(headline.ending)}</p>
{f'<ul class="alerts">{alerts}</ul>' if alerts else ""}
<dl class="tiles">{"".join(map(_render_tile, headline.tiles))}</dl>
<nav>{links}</nav>
</header>"""


def _render_tile(tile: Tile) -> str:
    meter = ""
    if tile.used is not None:
        tight = " tight" if tile.used > 0.9 else ""
        width = min(100.0, 100 * tile.used)
        meter = f'<div class="meter{tight}"><i style="width:{width:.1f}%"></i></div>'
    remark = f"<small>{escape(tile.remark)}</small>" if tile.remark else ""
    label = escape(tile.label).replace("/", "/<wbr>").replace("_", "_<wbr>")
    return f"<div><dt>{label}</dt><dd>{escape(tile.value)} {remark}{meter}</dd></div>"


def _render_section(section: Section) -> str:
    anchor = escape(section.anchor)
    body = "\n".join(_render_blocks(section, anchor))
    heading = f"<h2>{escape(section.title)}</h2>"
    if section.is_folded:
        return f'<section id="{anchor}"><details>\n<summary>{heading}</summary>\n{body}\n</details></section>'
    return f'<section id="{anchor}">\n{heading}\n{body}\n</section>'


def _render_blocks(section: Section, anchor: str) -> Iterator[str]:
    """Render blocks in order; adjacent plots, and adjacent small blocks, are placed side by side."""
    numbered = enumerate(section.blocks)
    for lane, group in groupby(numbered, key=lambda item: _choose_lane(item[1])):
        body = "\n".join(_render_block(block, f"{anchor}-{index}") for index, block in group)
        yield f'<div class="{lane}">{body}</div>' if lane else body


def _choose_lane(block: Block) -> str:
    if isinstance(block, Curves | Scatter):
        return "frames"
    return "beside" if isinstance(block, Confusion) or (isinstance(block, Table) and not _is_wide(block)) else ""


def _is_wide(table: Table) -> bool:
    return len(table.columns) > 2 and any(len(text) > 24 for row in table.rows for text in row)


def _render_block(block: Block, name: str) -> str:
    match block:
        case Text():
            return f'<p class="{block.tone}">{escape(block.text)}</p>'
        case Table():
            return _render_table(block)
        case Curves():
            last = iter(align_numbers([series.ys[-1] for series in block.series if series]))
            legend = "".join(
                _render_legend(series, next(last) if series else "", i % LINE_COLORS + 1)
                for i, series in enumerate(block.series)
            )
            caption = f"<figcaption><b>{escape(block.title)}</b><span>{legend}</span></figcaption>"
            return f'<figure class="frame">{caption}{draw_curves(block, name)}</figure>'
        case FoldedCurves():
            plots = "".join(_render_block(plot, f"{name}-{index}") for index, plot in enumerate(block.plots))
            return f'<details><summary>{escape(block.title)}</summary><div class="frames">{plots}</div></details>'
        case Scatter():
            legend = "".join(f'<span class="key tone-{tone}">{escape(kind)}</span>' for kind, tone in block.kinds)
            caption = f"<figcaption><b>{escape(block.title)}</b><span>{legend}</span></figcaption>"
            return f'<figure class="frame">{caption}{draw_scatter(block, name)}</figure>'
        case Confusion():
            return _render_matrix(block)
        case StackedBar():
            return _render_bar(block)
        case Gallery():
            return f'<div class="gallery">{"".join(map(_render_photo, block.photos))}</div>'
        case Details():
            return f"<details><summary>{escape(block.title)}</summary><pre>{escape(block.text)}</pre></details>"


def _render_legend(series: Series, last: str, shade: int) -> str:
    value = f" {last}" if series else ""
    broken = f", {series.broken} not finite" if series.broken else ""
    return f'<span class="key line-{shade}">{escape(series.name)}<em>{value}</em>{broken}</span>'


def _render_table(table: Table) -> str:
    kind = "wide" if _is_wide(table) else "narrow"
    lines = (table.columns, *table.rows)
    marks = [_choose_class(cells) for cells in zip(*lines, strict=True)]
    head = "".join(f"<th{mark}>{escape(column)}</th>" for column, mark in zip(table.columns, marks, strict=True))
    rows = []
    for index, row in enumerate(table.rows):
        named = zip(table.columns, marks, row, strict=True)
        cells = "".join(f'<td{mark} data-name="{escape(name)}">{escape(text)}</td>' for name, mark, text in named)
        rows.append(f'<tr class="{table.tones.get(index, Tone.PLAIN)}">{cells}</tr>')
    body = "\n".join(rows)
    inner = f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll">{inner}</div>'


def _choose_class(cells: Sequence[str]) -> str:
    """The class of a column, given its head and cells: single words, such as the names of runs, are never broken."""
    if max(map(len, cells)) > UNWRAPPED_LENGTH:
        return ""
    return ' class="short"' if any(" " in text for text in cells[1:]) else ' class="short word"'


def _render_matrix(confusion: Confusion) -> str:
    picture, width = draw_matrix(confusion)
    # A matrix of few classes shrinks with the screen; a large one keeps its size and scrolls.
    min_width = 0 if len(confusion.classes) <= 12 else width
    style = f"width:{width}px;min-width:{min_width}px;max-width:{'100%' if not min_width else 'none'}"
    return f'<div class="matrix"><div style="{style}">{picture}</div></div>'


def _render_photo(photo: SamplePicture) -> str:
    title, truth, answer, probability = map(escape, (photo.title, photo.truth, photo.answer, photo.probability))
    caption = f"true {truth}, predicted <strong>{answer}</strong><br><i>{probability} probability</i>"
    picture = f'<img src="{escape(photo.data)}" alt="{title}" title="{title}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _render_bar(bar: StackedBar) -> str:
    total = sum(size for _, size, _ in bar.parts) or 1.0
    parts, keys = [], []
    largest = sorted(sorted(range(len(bar.parts)), key=lambda index: -bar.parts[index][1])[:LINE_COLORS])
    for index, (name, size, text) in enumerate(bar.parts):
        shade = f"line-{largest.index(index) + 1}" if index in largest else "tone-quiet"
        parts.append(f'<i class="{shade}" style="flex-grow:{size / total:.4f}"></i>')
        value = f"{escape(text)}, {format_share(size / total)}"
        keys.append(f'<span class="key {shade}">{escape(name)}<em> {value}</em></span>')
    title = f"<figcaption><b>{escape(bar.title)}</b><span>{''.join(keys)}</span></figcaption>"
    return f'<figure class="bar">{title}<div>{"".join(parts)}</div></figure>'


def write_pages(files: RunFiles, name: str, data: object, headline: Headline, sections: Sequence[Section]) -> None:
    """Write NAME.json, NAME.md and NAME.html; raises StorageError if the folder cannot be written."""
    files.write_json(f"{name}.json", to_strict_json(data))
    files.write_text(f"{name}.md", printable_text(render_markdown(headline, sections)))
    files.write_text(f"{name}.html", printable_text(render_page(headline, sections)))
