"""Commit 2a: tests take the paths of the project from tests/paths instead of counting parents."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

MODULE = '''"""Where things lie: the project, the tests, and what they have recorded."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
MACHINES = TESTS / "machines"
TREES = TESTS / "trees"
TRACES = TESTS / "traces"
'''
CONSTANTS = {"ROOT": "", "TESTS": "tests", "DOCS": "docs", "MACHINES": "tests/machines", "TREES": "tests/trees", "TRACES": "tests/traces"}
BY_PLACE = {place: name for name, place in CONSTANTS.items()}


def place(node: ast.expr, file: str) -> str | None:
    """The folder that an expression over `Path(__file__)` means, relative to the project; None if it is none."""
    text = ast.unparse(node)
    if not text.startswith("Path(__file__)"):
        return None
    if isinstance(node, ast.BinOp):
        inner = place(node.left, file)
        if inner is None or not isinstance(node.op, ast.Div) or not isinstance(node.right, ast.Constant):
            return None
        return f"{inner}/{node.right.value}".lstrip("/")
    match = re.fullmatch(r"Path\(__file__\)(?:\.resolve\(\))?((?:\.parent)*)(?:\.parents\[(\d)\])?", text)
    if not match:
        return None
    up = match[1].count(".parent") + (int(match[2]) + 1 if match[2] else 0)
    return "/".join(file.split("/")[:-up]) if up else None


class Finder(ast.NodeVisitor):
    """The largest expressions that mean a known folder."""

    def __init__(self, file: str, known: set[str] | None = None) -> None:
        self.file, self.found, self.known = file, [], set(BY_PLACE) if known is None else known

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            where = place(node, self.file)
            if where is not None and where in self.known:
                self.found.append((node, BY_PLACE[where]))
                return
        self.generic_visit(node)


def rewrite(top: Path, files: list[str]) -> int:
    changed = 0
    for file in files:
        text = (top / file).read_text(encoding="utf-8")
        made = rewritten(text, file)
        if made != text:
            (top / file).write_text(made, encoding="utf-8")
            changed += 1
    return changed


def rewritten(text: str, file: str) -> str:
    tree = ast.parse(text)
    finder = Finder(file)
    finder.visit(tree)
    lines = text.splitlines(keepends=True)
    edits: list[tuple[int, int, str]] = []
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        def at(line: int, column: int) -> int:
            return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    assigned = {t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    # NAME = ROOT: the assignment goes, whatever its own name; its users take the name of tests/paths.
    renamed: dict[str, str] = {}
    gone = set()
    for node, name in finder.found:
        for own, statement in assigned.items():
            if statement.value is node and len(statement.targets) == 1:
                start, end = span(statement)
                edits.append((start, end + 1 if text[end : end + 1] == "\n" else end, ""))
                gone.add(id(node))
                renamed[own] = name
    used = {name for _, name in finder.found}
    own_meaning = {name for name in used if name in assigned and renamed.get(name) != name}
    qualified = bool(own_meaning - set(renamed))
    spelled = {name: f"paths.{name}" if qualified else name for name in used}
    for node, name in finder.found:
        if id(node) in gone:
            continue
        start, end = span(node)
        if text[start - 1] == "(" and text[end : end + 1] == ")" and not re.search(r"[\w\])]$", text[: start - 1]):
            start, end = start - 1, end + 1
        edits.append((start, end, spelled[name]))
    # The other uses of an assigned name that now has another one.
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in renamed:
            if spelled[renamed[node.id]] != node.id:
                edits.append((*span(node), spelled[renamed[node.id]]))
    wanted = set(used)
    # Constants that came from another test file.
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            ours = [a.name for a in node.names if a.name in ("ROOT",) and a.asname is None]
            if ours and node.module != "tests.paths":
                rest = [a for a in node.names if a.name not in ours]
                start, end = span(node)
                names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in rest)
                edits.append((start, end, f"from {node.module} import {names}" if rest else ""))
                wanted |= set(ours)
    # TESTS.parent is ROOT.
    if not wanted:
        return text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    line = "from tests import paths" if qualified else f"from tests.paths import {', '.join(sorted(wanted))}"
    imports = [n for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom)]
    last = imports[-1].end_lineno or 0
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:last], line + "\n", *lines[last:]])


def none_left(top: Path, files: list[str]) -> None:
    left = []
    for file in files:
        for number, line in enumerate((top / file).read_text(encoding="utf-8").splitlines(), 1):
            if "Path(__file__)" in line and file != "tests/paths.py":
                left.append(f"{file}:{number}: {line.strip()}")
    if left:
        sys.exit("paths that are still counted:\n    " + "\n    ".join(left))
