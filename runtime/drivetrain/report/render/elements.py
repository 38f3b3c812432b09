"""Makes elements of SVG: the only place of a report where text becomes markup; everything except elements is escaped."""

from __future__ import annotations

from markupsafe import Markup, escape


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Make an element; `text_anchor` becomes `text-anchor`, `class_` becomes `class`."""
    pairs = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(_format(x))}"' for name, x in attributes.items())
    body = "".join(map(escape, children))
    return Markup(f"<{tag}{pairs}>{body}</{tag}>" if body else f"<{tag}{pairs}/>")


def _format(value: object) -> str:
    """Write a length with two decimals at most; they are parts of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
