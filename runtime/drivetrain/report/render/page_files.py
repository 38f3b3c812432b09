"""Writes a report in its three forms."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.report.blocks import Headline, Section
from drivetrain.report.formatting import to_strict_json
from drivetrain.report.render.markdown import render_markdown
from drivetrain.report.render.page import render_page
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import RunFiles


def write_pages(files: RunFiles, name: str, data: object, headline: Headline, sections: Sequence[Section]) -> None:
    """Write NAME.json, NAME.md and NAME.html; raises StorageError if the folder cannot be written."""
    files.write_json(f"{name}.json", to_strict_json(data))
    files.write_text(f"{name}.md", printable_text(render_markdown(headline, sections)))
    files.write_text(f"{name}.html", printable_text(render_page(headline, sections)))
