"""Plain code and plain English, as figures of the package that may only fall: each is what was reached last."""

from __future__ import annotations

import ast
import collections
import functools
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

from tests.paths import PACKAGE

LINE_LENGTH = 120
MOST_LONG_LINES = 500
"""Lines over LINE_LENGTH. The formatter wraps code, so these are texts."""
MOST_PER_100_STATEMENTS = {"walrus": 0.2, "conditional expression": 4.46, "comprehension": 4.93}
"""Expressions that often need a second reading, where a branch or a loop needs one."""
LEAST_IMPERATIVE = 99.0
"""Percent of the docstrings of functions that begin with a verb, such as "Return" or "Read"."""
MORE_VERBS = {"return", "yield", "let", "forget", "rebuild", "give", "recognize", "determine"}
LEAST_COMMENTS = 1.25
"""Lines of comments per 100 lines of code."""
PATTERNS = {
    "`what` as a noun": r"\bwhat (?:is|was|has|an?|the|this|it|they|we|you|each|others|none|can|must|does|needs|follows|stays)\b",
    "`those of`, `that of`": r"\b(?:those|that) of\b",
    "`of which`, `in which`": r"\b(?:of|in|by|with|from|for|on|at) which\b",
    "British spelling": r"\b(?:colou|behaviou|favou|neighbou|centre|grey|licence)",
    "`those that`, `one that`": r"\b(?:those|ones?|all|any) that\b",
}
MOST_PER_1000_WORDS = {
    "`what` as a noun": 0.3,
    "`those of`, `that of`": 0.1,
    "`of which`, `in which`": 0.35,
    "`those that`, `one that`": 0.25,
    "British spelling": 0.0,
}
"""Signs of translated sentences, in docstrings and comments."""
DENSE = {
    ast.NamedExpr: "walrus",
    ast.IfExp: "conditional expression",
    ast.ListComp: "comprehension",
    ast.SetComp: "comprehension",
    ast.DictComp: "comprehension",
    ast.GeneratorExp: "comprehension",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A module of the package."""

    name: str
    lines: list[str]
    nodes: list[ast.AST]
    comments: list[tokenize.TokenInfo]

    def list_docstrings(self) -> list[str]:
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return [ast.get_docstring(node) or "" for node in self.nodes if isinstance(node, documented)]


@functools.cache
def read_modules() -> list[Module]:
    return [read_module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def read_module(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return Module(str(path.relative_to(PACKAGE)), text.splitlines(), list(ast.walk(ast.parse(text))), comments)


def is_function(node: ast.AST) -> TypeGuard[Function]:
    """Whether it is a function and no property, whose name and docstring are nouns."""
    return isinstance(node, Function) and not any("property" in ast.unparse(line) for line in node.decorator_list)


def test_every_class_has_its_own_name() -> None:
    modules = collections.defaultdict(list)
    for module in read_modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(module.name)
    assert not {name: places for name, places in modules.items() if len(places) > 1}


def test_lines_are_short() -> None:
    long_lines = [
        f"{module.name}:{number}"
        for module in read_modules()
        for number, line in enumerate(module.lines, 1)
        if len(line) > LINE_LENGTH
    ]
    assert len(long_lines) <= MOST_LONG_LINES, "\n".join(long_lines)


@pytest.mark.parametrize("kind", MOST_PER_100_STATEMENTS)
def test_code_is_plain(kind: str) -> None:
    places, statements = [], 0
    for module in read_modules():
        for node in module.nodes:
            statements += isinstance(node, ast.stmt)
            if DENSE.get(type(node)) == kind:
                assert isinstance(node, ast.expr)
                places.append(f"{module.name}:{node.lineno}")
    share = 100 * len(places) / statements
    print(f"{share:.2f} {kind}s per 100 statements")
    assert share <= MOST_PER_100_STATEMENTS[kind], "\n".join(places)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """A verb is a word with which the name of a function begins, since a list would need each new verb."""
    functions = [(m.name, node) for m in read_modules() for node in m.nodes if is_function(node)]
    verbs = MORE_VERBS | {node.name.strip("_").split("_")[0] for _, node in functions}
    documented, others = 0, []
    for name, node in functions:
        docstring = ast.get_docstring(node)
        if docstring:
            documented += 1
            if docstring.split()[0].strip(":,.").lower() not in verbs:
                others.append(f"{name}:{node.lineno}: {docstring.splitlines()[0]}")
    share = 100 * (1 - len(others) / documented)
    print(f"{share:.1f} % of {documented} docstrings begin with a verb")
    assert share >= LEAST_IMPERATIVE, "\n".join(others)


def test_steps_with_a_reason_have_a_comment() -> None:
    """Only lines of their own count: a comment behind code is mostly for the type checker."""
    comments, lines = 0, 0
    for module in read_modules():
        lines += sum(bool(line.strip()) for line in module.lines)
        comments += sum(comment.line.lstrip().startswith("#") for comment in module.comments)
    share = 100 * comments / lines
    print(f"{share:.2f} lines of comments per 100 lines")
    assert share >= LEAST_COMMENTS


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sentences_are_plain(pattern: str) -> None:
    regex, words, places = re.compile(PATTERNS[pattern], re.IGNORECASE), 0, []
    for module in read_modules():
        for text in module.list_docstrings() + [comment.string for comment in module.comments]:
            sentence = " ".join(text.split())
            words += len(sentence.split())
            places += [
                f"{module.name}: {sentence[max(0, m.start() - 30) : m.end() + 30]}" for m in regex.finditer(sentence)
            ]
    share = 1000 * len(places) / words
    print(f"{share:.2f} of {pattern} per 1,000 words")
    assert share <= MOST_PER_1000_WORDS[pattern], "\n".join(places)
