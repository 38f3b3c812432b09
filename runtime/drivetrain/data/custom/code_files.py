"""Finds the Python files that a user's code imports, and the files that its arguments name: both are copied with it."""

from __future__ import annotations

import ast
import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from drivetrain.errors import CheckpointError

MAX_COPY_BYTES = 16 << 20
"""Largest file or folder to copy, in bytes; larger ones are taken for data or weights."""
MAX_FOLDER_FILES = 100
"""Largest number of files in a folder to copy."""


def read_with_imports(first: Path, read: Callable[[Path], bytes]) -> None:
    """Read a Python file and, recursively, the files of its folder that its code imports, without running them.

    Args:
        first: the file; absolute imports are looked up in its folder.
        read: function that returns the content of a file.

    Raises:
        OSError: if the first file cannot be read.
    """
    pending, known_files = [first], {first}
    while pending:
        path = pending.pop()
        try:
            content = read(path)
        except (OSError, CheckpointError):
            if path == first:
                raise
            continue  # it may never be imported; if it is, Python reports the error
        for imported in _list_imported(content, path, first.parent):
            if imported not in known_files:
                known_files.add(imported)
                pending.append(imported)


def _list_imported(content: bytes, path: Path, top: Path) -> Iterator[Path]:
    """Yield the files that a source imports: modules, and the packages that contain them."""
    tree: ast.AST = ast.Module([], [])
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _find_module_files(top, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else top
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _find_module_files(base, [*module, alias.name])


def _find_module_files(base: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files, below a folder, of a module and of the packages that contain it."""
    for count in range(1, len(parts) + 1):
        folder = base.joinpath(*parts[:count])
        yield from (file for file in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")) if file.is_file())


def list_copies(folder: Path, text: str) -> list[str]:
    """List the files to copy, relative to the folder, for an argument: the file that it names, or all files of a folder.

    Empty if it names nothing in the folder by a relative path, or too many or too large files.
    """
    name = os.path.normpath(text)
    target = folder / name
    if os.path.isabs(name) or name.partition("/")[0] in (".", "..") or not os.path.exists(target):
        return []
    if os.path.isfile(target):
        return [name] if os.path.getsize(target) <= MAX_COPY_BYTES else []
    # Listing stops once there are clearly too many files.
    paths = [
        path
        for inner, _, files in islice(os.walk(target), MAX_FOLDER_FILES)
        for path in (Path(inner, file) for file in files[: MAX_FOLDER_FILES + 1])
        if path.is_file()
    ]
    fits = len(paths) <= MAX_FOLDER_FILES and sum(map(os.path.getsize, paths)) <= MAX_COPY_BYTES
    return [path.relative_to(folder).as_posix() for path in paths] if fits else []
