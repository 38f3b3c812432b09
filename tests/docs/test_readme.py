"""The two first pages: short, true to pyproject.toml, and the Spanish one says the same as the English one."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT

ENGLISH, SPANISH = ROOT / "README.md", ROOT / "README.es.md"
PAGES = (ENGLISH, SPANISH)
WIDTH = 96
"""Characters of a block of code on a page of a forge, on a desktop."""
LINES = {".md": 110, ".es": 114}  # Spanish takes more words


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def list_typed_lines(page: Path) -> list[str]:
    """Lines to be typed, without their comments."""
    lines = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL).splitlines()
    return [re.sub(r"\s+#.*", "", line.strip()) for line in lines if line.startswith("    ")]


def rows(page: Path) -> list[list[str]]:
    """The cells of all tables."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text(page).splitlines() if line[:1] == "|"
    ]


def links(page: Path) -> list[str]:
    """Where its links and pictures lead, in order; each page links to the other one."""
    matches = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text(page))
    return sorted(one or other for one, other in matches if not (one or other).startswith("README"))


def code(page: Path) -> list[str]:
    """Commands and names between backquotes."""
    return sorted(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_it_is_short(page: Path) -> None:
    assert len(text(page).splitlines()) <= LINES[page.suffixes[0]]


def test_both_say_the_same_commands_tables_and_links() -> None:
    assert list_typed_lines(SPANISH) == list_typed_lines(ENGLISH)
    assert len(list_typed_lines(ENGLISH)) > 8
    assert [len(row) for row in rows(SPANISH)] == [len(row) for row in rows(ENGLISH)]
    commands = [row[0] for row in rows(ENGLISH) if row[0].startswith("`")]
    assert [row[0] for row in rows(SPANISH) if row[0].startswith("`")] == commands
    assert links(SPANISH) == links(ENGLISH)
    assert code(SPANISH) == code(ENGLISH)


def test_the_figures_are_the_same_in_both() -> None:
    """Numbers are written as `1.5` and `1,5`, dates and versions alike."""
    figures = [
        re.findall(r"\d+(?:[.,:-]\d+)*", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)) for page in PAGES
    ]
    assert sorted(figure.replace(",", ".") for figure in figures[1]) == sorted(f.replace(",", ".") for f in figures[0])


def test_every_command_of_the_program_is_in_the_table() -> None:
    from drivetrain.cli.arguments import make_parser

    (choices,) = [action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    table = " ".join(row[0] for row in rows(ENGLISH))
    assert choices
    assert [name for name in choices if not re.search(rf"\b{name}\b", table)] == []


def test_the_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    badges = {"python": project["requires-python"].removeprefix(">=") + "+", "license": project["license"]}
    for name, value in badges.items():
        picture = text(ROOT / "docs" / "images" / f"badge-{name}.svg")
        assert re.findall(r"<text[^>]*>([^<]+)<", picture) == [name, value]
        assert all(f"docs/images/badge-{name}.svg" in text(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_to_be_typed_is_cut_off_at_the_width_of_a_page(page: Path) -> None:
    lines = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL).splitlines()
    assert [line for line in lines if line.startswith("    ") and len(line) > 4 + WIDTH] == []
