"""Names say what they hold: no variable is a word that names nothing, no module is called `load`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import PACKAGE, ROOT, TESTS

PLACEHOLDERS = {
    "found",
    "made",
    "own",
    "given",
    "kept",
    "held",
    "known",
    "wanted",
    "settled",
    "told",
    "tell",
    "more",
    "rest",
    "taken",
    "left",
    "lost",
    "asked",
    "seen",
    "here",
    "there",
    "others",
    "each",
    "whole",
    "place",
    "trouble",
    "what",
    "why",
    "spent",
    "shown",
    "strange",
    "chosen",
    "meant",
    "twin",
    "beside",
    "apart",
    "gone",
    "late",
    "news",
    "looked",
    "goal",
    "words",
    "again",
}
"""Words of which a variable or parameter says nothing about what it is."""
IRREGULAR = {
    "made",
    "found",
    "given",
    "kept",
    "held",
    "known",
    "told",
    "taken",
    "left",
    "lost",
    "chosen",
    "gone",
    "built",
    "sent",
    "drawn",
    "written",
    "shown",
    "spent",
    "bound",
    "begun",
}
NOT_PARTICIPLES = {"need", "feed", "seed", "embed", "exceed", "proceed", "speed", "shed"}
MOST_PARTICIPLES = 34
"""Public functions whose names are participles, not verbs, as a number that may only become smaller."""
MODULES = {"load", "utils", "helper", "helpers", "common", "base", "manager", "misc"}


def list_functions(folder: Path) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def stored_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    parameters = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    stored = (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return parameters | set(stored)


def is_participle(name: str) -> bool:
    first = name.split("_")[0]
    return (first.endswith("ed") and first not in NOT_PARTICIPLES) or first in IRREGULAR


@pytest.mark.parametrize("folder", [PACKAGE, TESTS, ROOT / "benchmarks"], ids=lambda folder: folder.name)
def test_variables_name_what_they_hold(folder: Path) -> None:
    functions = list(list_functions(folder))
    bad = [f"{path.relative_to(folder)}: {node.name}: {stored_names(node) & PLACEHOLDERS}" for path, node in functions
           if stored_names(node) & PLACEHOLDERS]  # fmt: skip
    assert len(bad) < 0.01 * len(functions), "\n".join(bad)


def test_public_functions_are_verbs() -> None:
    nouns = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path, node in list_functions(PACKAGE)
        if is_participle(node.name) and not any("property" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert len(nouns) <= MOST_PARTICIPLES, "\n".join(nouns)


@pytest.mark.parametrize("word", sorted(MODULES))
def test_no_module_has_a_name_that_says_nothing(word: str) -> None:
    assert not list(PACKAGE.rglob(f"{word}.py")) + list(PACKAGE.rglob(word))
