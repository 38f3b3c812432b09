"""Renders a report as one self-contained HTML file by the template page.html: no scripts, no requests, light and dark mode."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.report.blocks import Block, Curves, Headline, Scatter, Section, StackedBar, Table
from drivetrain.report.confusion import Confusion
from drivetrain.report.formatting import align_numbers, format_share, to_strict_json
from drivetrain.report.log_series import Series
from drivetrain.report.render.markdown import render_markdown
from drivetrain.report.render.plot_svg import LINE_COLORS, draw_curves, draw_matrix, draw_scatter
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import RunFiles

if TYPE_CHECKING:
    from jinja2 import Template

UNWRAPPED_LENGTH = 28
"""Characters up to which cells of a column are not wrapped."""
_UNITS = "%|s|ms|min|h|x|B|KiB|MiB|GiB|TiB|[kMGT]?FLOP|W|MHz|°C|degrees|CPUs?|cores?|threads?|samples/s|epochs?"
_NUMBER = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")


def render_page(headline: Headline, sections: Sequence[Section]) -> str:
    """Write the headline and all sections as an HTML page."""
    return _load_template().render(headline=headline, sections=list(_name_anchors(sections)))


def write_pages(files: RunFiles, name: str, data: object, headline: Headline, sections: Sequence[Section]) -> None:
    """Write NAME.json, NAME.md and NAME.html; raises StorageError if the folder cannot be written."""
    files.write_json(f"{name}.json", to_strict_json(data))
    files.write_text(f"{name}.md", printable_text(render_markdown(headline, sections)))
    files.write_text(f"{name}.html", printable_text(render_page(headline, sections)))


@functools.cache
def _load_template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 0.1 s, only where a report is written

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_keep_units,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers = (align_legend, color_parts, draw_curves, draw_matrix, draw_scatter, is_wide, list_lanes, mark_columns)
    environment.globals.update({helper.__name__: helper for helper in helpers})
    environment.filters.update(share=format_share, kind=lambda block: type(block).__name__, pieces=_split_name)
    return environment.get_template("page.html")


def _keep_units(value: object) -> object:
    """Keep a number and its unit on one line; markup is returned unchanged."""
    return _NUMBER.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _split_name(name: str) -> list[str]:
    """Split a name where a browser may break it."""
    return re.split(r"(?<=[/_])(?=.)", name)


def _name_anchors(sections: Sequence[Section]) -> Iterator[tuple[str, Section]]:
    """Give every section a unique id of letters, digits and dashes."""
    anchors: set[str] = set()
    for section in sections:
        anchor = re.sub(r"[^\w-]", "-", section.anchor)
        while anchor in anchors:
            anchor += "-"
        anchors.add(anchor)
        yield anchor, section


def list_lanes(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Put adjacent plots, and adjacent small blocks, side by side; other blocks are in a lane without a name."""
    return [(lane, list(group)) for lane, group in groupby(blocks, key=_choose_lane)]


def _choose_lane(block: Block) -> str:
    if isinstance(block, Curves | Scatter):
        return "frames"
    return "beside" if isinstance(block, Confusion) or (isinstance(block, Table) and not is_wide(block)) else ""


def is_wide(table: Table) -> bool:
    """Return whether a table needs the whole width."""
    return len(table.columns) > 2 and any(len(text) > 24 for row in table.rows for text in row)


def align_legend(plot: Curves) -> list[tuple[Series, str]]:
    """Return every series with its last value; all have the same decimals."""
    last_values = iter(align_numbers([series.ys[-1] for series in plot.series if series]))
    return [(series, next(last_values) if series else "") for series in plot.series]


def mark_columns(table: Table) -> list[str]:
    """Return the class of every column: single words, for example names of runs, are never broken."""
    return [_choose_class(cells) for cells in zip(table.columns, *table.rows, strict=True)]


def _choose_class(cells: Sequence[str]) -> str:
    if max(map(len, cells)) > UNWRAPPED_LENGTH:
        return ""
    return "short" if any(" " in text for text in cells[1:]) else "short word"


def color_parts(bar: StackedBar) -> list[tuple[str, str, float, str]]:
    """Return the parts of a bar as (class, name, share, text); as many as there are colors have one, the largest."""
    total = sum(size for _, size, _ in bar.parts) or 1.0
    by_size = sorted(range(len(bar.parts)), key=lambda index: -bar.parts[index][1])
    colors = {index: f"line-{number}" for number, index in enumerate(sorted(by_size[:LINE_COLORS]), 1)}
    return [
        (colors.get(index, "tone-quiet"), name, size / total, text)
        for index, (name, size, text) in enumerate(bar.parts)
    ]
