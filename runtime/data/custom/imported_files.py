"""Which files of its folder a Python file of the user imports, wherever in its code; read from the source, nothing runs."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.errors import CheckpointError


def read_all(first: Path, read: Callable[[Path], bytes]) -> None:
    """Read a file, the files beside it that it imports, and those that they import.

    Args:
        first: the file; its folder is where absolute imports are looked up.
        read: returns the content of a file.

    Raises:
        OSError: if the first file cannot be read.
    """
    waiting, seen = [first], {first}
    while waiting:
        path = waiting.pop()
        try:
            content = read(path)
        except (OSError, CheckpointError):
            if path == first:
                raise
            continue  # perhaps it is never imported; if it is, Python reports it
        for imported in _imported(content, path, first.parent):
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)


def _imported(content: bytes, path: Path, top: Path) -> Iterator[Path]:
    """Files that a source imports: modules, and the packages that they are in."""
    tree: ast.AST = ast.Module([], [])
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(top, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else top
            module = node.module.split(".") if node.module else []
            yield from _modules(base, module)
            for alias in node.names:
                yield from _modules(base, [*module, alias.name])


def _modules(base: Path, parts: list[str]) -> Iterator[Path]:
    for count in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:count])
        yield from (file for file in (place / "__init__.py", place.with_name(f"{place.name}.py")) if file.is_file())
