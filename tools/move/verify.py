"""Static checks of a tree: imports of our own modules, and attributes of modules that are used."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

OURS = ("runtime", "tests", "benchmarks", "docs")


def files(top: Path) -> list[str]:
    out = subprocess.run(["git", "ls-files", "-z", "-c", "-o", "--exclude-standard", "--", "*.py"], cwd=top, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(out.split("\0")) if name and (top / name).is_file())


def find(top: Path, name: str) -> Path | None:
    path = top.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file() and "." in name:
        return path.with_suffix(".py")
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    return None


def is_folder(top: Path, name: str) -> bool:
    return top.joinpath(*name.split(".")).is_dir()


_cache: dict[tuple[Path, float], set[str]] = {}


def names(path: Path) -> set[str]:
    """What a module binds at its top level, in branches too."""
    key = (path, path.stat().st_mtime)
    if key in _cache:
        return _cache[key]
    bound: set[str] = {"__name__", "__file__", "__doc__", "__path__", "__dict__"}

    def look(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.Import):
                bound.update((a.asname or a.name).split(".")[0] for a in node.names)
            elif isinstance(node, ast.ImportFrom):
                bound.update(a.asname or a.name for a in node.names)
            else:
                for child in ast.walk(node) if not hasattr(node, "body") else _heads(node):
                    if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                        bound.add(child.id)
                for field in ("body", "orelse", "finalbody"):
                    look(getattr(node, field, []) or [])
                for handler in getattr(node, "handlers", []):
                    look(handler.body)

    def _heads(node: ast.stmt) -> list[ast.AST]:
        found: list[ast.AST] = []
        for field in ("target", "items"):
            value = getattr(node, field, None)
            for one in value if isinstance(value, list) else [value] if value is not None else []:
                found += list(ast.walk(one))
        return found

    look(ast.parse(path.read_text(encoding="utf-8")).body)
    _cache[key] = bound
    return bound


def imports(top: Path) -> list[str]:
    wrong = []
    for file in files(top):
        for node in ast.walk(ast.parse((top / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] in OURS and not find(top, alias.name):
                        wrong.append(f"{file}:{node.lineno}: import {alias.name}")
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
                home = find(top, node.module)
                if home is None and not is_folder(top, node.module):
                    wrong.append(f"{file}:{node.lineno}: from {node.module}")
                    continue
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    public = node.module == "runtime" and alias.name in _homes(top)
                    if not find(top, whole) and not public and not (home and alias.name in names(home)):
                        wrong.append(f"{file}:{node.lineno}: from {node.module} import {alias.name}")
    return wrong


def _homes(top: Path) -> set[str]:
    text = (top / "runtime/__init__.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return set(ast.literal_eval(node.value))
    raise AssertionError("runtime/__init__ has no _HOMES")


def attributes(top: Path) -> Counter[str]:
    """`FILE: ALIAS.NAME` for attributes that the module behind the alias does not bind; shadowed names are counted too."""
    found: Counter[str] = Counter()
    for file in files(top):
        tree = ast.parse((top / file).read_text(encoding="utf-8"))
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
                for alias in node.names:
                    if find(top, f"{node.module}.{alias.name}"):
                        modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                _look(top, file, node.value.id, node.attr, modules, found)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and len(node.args) >= 2:
                owner, name = node.args[:2]
                if isinstance(owner, ast.Name) and owner.id in modules and isinstance(name, ast.Constant):
                    _look(top, file, owner.id, str(name.value), modules, found)
    return found


def _look(top: Path, file: str, alias: str, name: str, modules: dict[str, str], found: Counter[str]) -> None:
    home = find(top, modules[alias])
    assert home
    # An empty __init__ has as attributes the submodules that somebody has imported.
    if name not in names(home) and not (home.name == "__init__.py" and find(top, f"{modules[alias]}.{name}")):
        found[f"{file}: {alias}.{name}"] += 1
