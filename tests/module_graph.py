"""The modules of the package, what each imports, and the order of the packages."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.paths import PACKAGE, SOURCE

ORDER = (
    "errors",
    "system",
    "storage",
    "hardware",
    "job",
    "tasks",
    "distributed",
    "pretrained",
    "data",
    "models",
    "optimizations",
    "job_spec",
    "plan",
    "tracking",
    "report",
    "training",
    "tuning",
    "inference",
    "baselines",
    "tasks.KIND",
    "supervisor",
    "library",
    "launch",
    "cli",
)
"""The packages from the bottom up: each imports only what stands before it. Functions of `tasks.KIND`, the folder of a
kind of data, are called by name alone."""
TOP = ("__init__", "__main__")
"""They hand on names and start the command line; nobody imports them."""


def modules() -> dict[str, Path]:
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def find_imports(tree: ast.AST, module_names: set[str]) -> Iterator[str]:
    """Project modules that a file imports anywhere: at module level, inside functions, and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in module_names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            if node.module in module_names:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in module_names else str(node.module) for name in below)


@functools.cache
def graph() -> dict[str, set[str]]:
    module_paths = modules()
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in module_paths.items()}
    return {name: set(find_imports(tree, set(module_paths))) - {name} for name, tree in trees.items()}


def package(module: str) -> str:
    """The package of a module, or the file of that name at the top; api stands with plan."""
    parts = module.split(".")
    if len(parts) == 4 and parts[1] == "tasks" and parts[3] != "job":
        return "tasks.KIND"
    name = parts[1] if len(parts) > 1 else "__init__"
    return "plan" if name == "api" else name
