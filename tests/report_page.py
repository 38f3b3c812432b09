"""A report page as a browser reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Collects what a browser would load, run or show, and whether every element is closed in turn."""

    VOID = ("meta", "br", "wbr", "img", "path", "use", "rect", "image")

    def __init__(self, text: str) -> None:
        super().__init__()
        # The parser takes an end tag without its bracket for one; a browser leaves the element open.
        assert not re.findall(r"</\w+[^\w\s>].{20}", text)
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.order: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.order.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("href", "src", "srcset", "action", "data", "xlink:href") or (
                "url(" in (value or "") and name not in ("alt", "title", "data-name", "aria-label")
            ):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += " " + data.replace("\N{NO-BREAK SPACE}", " ")


def read_page(run: Path) -> Page:
    return Page((run / "report.html").read_text(encoding="utf-8"))
