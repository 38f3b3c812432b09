"""Renders a report as Markdown, without its charts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drivetrain.report.blocks import Block, Chart, Details, Gallery, Headline, Section, Table, Text, Tone
from drivetrain.report.confusion import Confusion

_MARKUP = re.compile(r"([\\`*|\[\]~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.)")
"""Characters that mean something; `_` only at the edge of a word."""
_LINE_START = re.compile(r"^(\d*)([#>+=-]|(?<=\d)[.)])")


def render_markdown(headline: Headline, sections: Sequence[Section]) -> str:
    """Write the headline and all sections as Markdown."""
    lines = [
        f"# {_escape(headline.run)}: {_escape(headline.value)}",
        f"{_escape_line(headline.label)}. {_escape(headline.subject)}.",
        *([f"**{_escape(headline.verdict)}**"] if headline.verdict else []),
        f"**{_escape(headline.status)}**: {_escape(headline.ending)}",
        *(["\n".join(f"- **{_escape(text)}**" for text in headline.alerts)] if headline.alerts else []),
        _render_table(Table(("run", "", ""), tuple((t.label, t.value, t.remark) for t in headline.tiles))),
    ]
    for section in sections:
        # A section of blocks that only the page can show gets no title.
        if rendered := [_render_block(block) for block in section.blocks if not isinstance(block, Chart)]:
            lines += [f"## {_escape(section.title)}", *rendered]
    return "\n\n".join(lines) + "\n"


def _render_block(block: Block) -> str:
    match block:
        case Text():
            return f"**{_escape(block.text)}**" if block.tone in (Tone.WARN, Tone.BAD) else _escape_line(block.text)
        case Table():
            return _render_table(block)
        case Confusion():
            counts = zip(block.classes, block.matrix, strict=True)
            return _render_table(Table(("true", *block.classes), tuple((name, *map(str, row)) for name, row in counts)))
        case Gallery():
            cells = tuple((photo.title, photo.truth, photo.answer, photo.probability) for photo in block.photos)
            return _render_table(Table(("sample", "true class", "predicted", "probability"), cells))
        case Details():
            # The fence must be longer than any row of backticks in the text.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{_escape_line(block.title)}:\n\n{fence}yaml\n{block.text.rstrip()}\n{fence}"
    raise TypeError(block)


def _render_table(table: Table) -> str:
    rows = [
        [f"**{text}**" if text and table.tones.get(index) == Tone.WARN else text for text in map(_escape, row)]
        for index, row in enumerate(table.rows)
    ]
    lines = [[_escape(column) for column in table.columns], ["---"] * len(table.columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Replace all Markdown markup by its escaped form, also in addresses, which some readers turn into links."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _escape_line(text: str) -> str:
    """Replace the markup of a text that begins a line, where it could be a heading, a list, a quote or a rule."""
    return _LINE_START.sub(r"\1\\\2", _escape(text))
