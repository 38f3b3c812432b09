"""CONTRIBUTING.md names only what exists, and the table of packages is complete."""

from __future__ import annotations

import ast
import re

from tests import module_graph
from tests.paths import ROOT

PAGES = [ROOT / "CONTRIBUTING.md"]
SPANS = [(page.name, span) for page in PAGES for span in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))]
PATHS = sorted({(page, span) for page, span in SPANS if re.fullmatch(r"(?!runs/)[\w./-]*(/|\.\w+)[\w./-]*", span)})
NAMES = sorted({(page, span) for page, span in SPANS if re.fullmatch(r"[A-Za-z_]\w*\*?", span)})
# Words that the rules forbid or quote, and the placeholder for a file that a reader adds.
ELSEWHERE = {"eval", "exec"}
PLACEHOLDER = re.compile(r"[\w-]*(NAME|MODULE)[\w.-]*/?$")


def exists(path: str) -> bool:
    """Whether a file or folder is there; of a file that a reader adds, its folder."""
    return (ROOT / PLACEHOLDER.sub("", path)).exists() or path == "__init__.py"


def code() -> set[str]:
    """Every word of the package and its modules."""
    identifiers: set[str] = set()
    for path in (ROOT / "runtime" / "drivetrain").rglob("*.py"):
        identifiers |= {path.stem, path.parent.name} | set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return identifiers


def packages() -> set[str]:
    return {path.parent.name for path in (ROOT / "runtime" / "drivetrain").glob("*/__init__.py")}


def test_every_path_exists() -> None:
    """A file was moved or renamed: correct the page."""
    assert [(page, path) for page, path in PATHS if not exists(path)] == []


def test_every_name_exists() -> None:
    """A module, function or class was renamed: correct the page."""
    identifiers = code()
    assert [(page, name) for page, name in NAMES if name.rstrip("*") not in identifiers | ELSEWHERE] == []


def test_the_table_has_the_packages_in_their_order() -> None:
    """From the top down, as tests/module_graph.py orders their imports."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [name for name in reversed(module_graph.ORDER) if name in packages()]


def test_names_with_a_file_stand_in_it() -> None:
    """`BUILDERS` in `runtime/drivetrain/models/builders.py`: the file defines the name."""
    wrong = []
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").split())
        for name, file in re.findall(r"`(\w+)` (?:in|of) `(runtime/[\w/]+\.py)`", text):
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            for node in tree.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
            if name not in defined:
                wrong.append((page.name, name, file))
    assert wrong == []
