"""The size of the package by parts, which may only shrink: whoever needs more says why, and raises a number here."""

from __future__ import annotations

import ast
import collections
import re
from pathlib import Path

from tests.paths import PACKAGE, TESTS

LONGEST = 400
"""Lines of a file."""
SENTENCE = re.compile(r"(?:[A-Za-z][A-Za-z'-]*[,;:.]? ){3}[A-Za-z]{2,}")
MOST_SENTENCES = 30
"""Asserts that quote four words or more, which break with every new wording: `tests/messages.py` holds the others."""


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_package_grows_unseen() -> None:
    lines: collections.Counter[str] = collections.Counter()
    files: collections.Counter[str] = collections.Counter()
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "top"
        lines[part] += count_lines(path)
        files[part] += 1
    grown = {
        part: f"{files[part]} files, {lines[part]:,} lines"
        for part in sorted(lines)
        if files[part] > MOST.get(part, (0, 0))[0] or lines[part] > MOST.get(part, (0, 0))[1]
    }
    for part in sorted(lines):
        print(f"{part:15}{files[part]:5} files {lines[part]:8,} lines")
    assert not grown
    assert set(MOST) == set(lines)


def test_files_are_read_on_a_few_screens() -> None:
    longer = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if count_lines(p) > LONGEST}
    assert not longer, "divide them by what they hold"


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert not silent


def list_strings(node: ast.AST) -> list[str]:
    """Every text in an expression, with 0 for what an f-string puts in."""
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [text for child in ast.iter_child_nodes(node) for text in list_strings(child)]


def test_few_asserts_quote_sentences() -> None:
    asserts = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and any(SENTENCE.search(text) for text in list_strings(node.test))
    ]
    assert len(asserts) <= MOST_SENTENCES, "\n".join(asserts)


MOST: dict[str, tuple[int, int]] = {
    "baselines": (7, 954),
    "cli": (20, 1_934),
    "data": (72, 12_860),
    "distributed": (8, 1_065),
    "hardware": (16, 1_875),
    "inference": (13, 1_565),
    "job": (21, 2_980),
    "job_spec": (12, 2_303),
    "library": (8, 1_907),
    "launch": (19, 2_711),
    "models": (38, 5_226),
    "optimizations": (26, 2_176),
    "plan": (7, 751),
    "pretrained": (13, 1_935),
    "report": (18, 2_735),
    "storage": (6, 868),
    "supervisor": (19, 2_722),
    "system": (26, 2_630),
    # Its folders hold all that knows a single kind of data, which other packages give up.
    "tasks": (55, 8_033),
    "top": (4, 356),
    "tracking": (18, 1_782),
    "training": (53, 8_636),
    "tuning": (22, 2_812),
}
