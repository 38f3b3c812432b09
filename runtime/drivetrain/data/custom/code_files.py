"""Finds the files that a user's code imports, names in arguments or opens, so that they are copied with it."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import quote, unquote

from drivetrain.errors import CheckpointError

MAX_COPY_BYTES = 16 << 20
"""Largest file or folder to copy, in bytes; larger ones are taken for data or weights."""
MAX_FOLDER_FILES = 100
"""Largest number of files in a folder to copy."""
MAX_NAME_LETTERS = 240
"""Longest name of a copy, in letters."""
OUTSIDE = "_outside/"
"""Prefix of the names of copies of files from outside the folder of the job."""
_open_lists: list[tuple[list[str], type | None, int]] = []
"""Lists that collect paths, each with the class that must have a running method, or None, and the thread."""


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
            yield from _find_module_files(base, module)
            for alias in node.names:
                yield from _find_module_files(base, [*module, alias.name])


def _find_module_files(base: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files, below a folder, of a module and of the packages that contain it."""
    for count in range(1, len(parts) + 1):
        folder = base.joinpath(*parts[:count])
        yield from (file for file in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")) if file.is_file())


def name_copy(text: str) -> str:
    """Return the name of the copy of a file; for a file outside of the job's folder, it holds the whole path."""
    path = Path(os.path.normpath(text))
    return f"{OUTSIDE}{quote(text, safe='')}" if path.is_absolute() or ".." in path.parts else path.as_posix()


def find_original(folder: Path, name: str) -> Path:
    """Return the original of the copy with this name, in the folder of the job or else in the working folder."""
    text = unquote(name.removeprefix(OUTSIDE)) if name.startswith(OUTSIDE) else name
    return folder / text if os.path.exists(folder / text) else Path.cwd() / text


def list_copies(target: Path, name: str) -> list[str]:
    """List the names of the copies of a file, or of the files in a folder; empty if they are too many or too large."""
    if any(len(part) > MAX_NAME_LETTERS for part in name.split("/")):
        return []
    if os.path.isfile(target):
        return [name] if os.path.getsize(target) <= MAX_COPY_BYTES else []
    if name == "." or not os.path.isdir(target):
        return []
    # Listing stops once there are clearly too many files.
    paths = [
        Path(folder, file)
        for folder, _, files in islice(os.walk(target), MAX_FOLDER_FILES)
        for file in files[: MAX_FOLDER_FILES + 1]
    ]
    fits = (
        len(paths) <= MAX_FOLDER_FILES
        and sum(os.path.getsize(path) for path in paths if path.is_file()) <= MAX_COPY_BYTES
    )
    return [f"{name}/{path.relative_to(target).as_posix()}" for path in paths if path.is_file()] if fits else []


@contextlib.contextmanager
def record_opened(within: type | None = None) -> Iterator[list[str]]:
    """Yield a list that collects the paths that this thread opens for reading in the block.

    With a class, the list has only paths opened by its methods, or by functions that they call.
    """
    _install_hook()
    paths: list[str] = []
    entry = (paths, within, threading.get_ident())
    _open_lists.append(entry)
    try:
        yield paths
    finally:
        _open_lists.remove(entry)


@functools.cache
def _install_hook() -> None:
    """Add the audit hook once; Python cannot remove it."""
    sys.addaudithook(_record_opened)


def _record_opened(event: str, arguments: tuple[object, ...]) -> None:
    """Add the path of a file that is opened for reading to the lists that collect it, as an audit hook."""
    if not _open_lists or event != "open":
        return
    path, flags = arguments[0], arguments[2]
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if isinstance(path, str | bytes) and not writes:
        for paths, within, thread in _open_lists:
            if thread == threading.get_ident() and (within is None or _is_running(within)):
                paths.append(os.fsdecode(path))


def _is_running(kind: type) -> bool:
    """Return whether a method of this class is among the callers of the function that opened a file."""
    frame = sys._getframe(2)
    while frame and not isinstance(frame.f_locals.get("self"), kind):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
