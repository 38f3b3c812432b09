"""Renders a report as one self-contained HTML file by the template page.html: no scripts, no requests, light and dark mode."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.report.blocks import Headline, Section
from drivetrain.report.chart import LINE_COLORS, draw_chart
from drivetrain.report.formatting import format_number

if TYPE_CHECKING:
    from jinja2 import Template


def render_page(headline: Headline, sections: Sequence[Section]) -> str:
    """Write the headline and all sections as an HTML page."""
    return _load_template().render(headline=headline, sections=sections)


@functools.cache
def _load_template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 0.1 s, only where a report is written

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(draw_chart=draw_chart, format_number=format_number, colors=LINE_COLORS)
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.get_template("page.html")
