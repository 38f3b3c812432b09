"""Finds the files that a user's code imports or names, so that they are copied with it."""

from __future__ import annotations

import ast
import contextlib
import os
import re
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
COPIED_SUFFIXES = (".cfg", ".csv", ".ini", ".json", ".npy", ".toml", ".txt", ".yaml", ".yml")
"""Suffixes of files that are copied with the code if texts in it name them."""
_PATH_WRITERS = {"write_text", "write_bytes", "touch", "unlink"}
"""Methods of a path that change its file."""
_FILE_WRITERS = {"save", "savetxt", "to_csv", "FileHandler", "RotatingFileHandler", "basicConfig"}
"""Functions that write a file, which is their first argument or one of these options."""
_FILE_OPTIONS = {"file", "filename", "fname"}
_WRITE_MODE = re.compile("[rbt]*[wax+][wax+bt]*")


def read_with_imports(first: Path, read: Callable[[Path], bytes]) -> None:
    """Read a Python file and, recursively, the files of its folder that its code imports or names, without running them.

    Args:
        first: the file; absolute imports are looked up in its folder.
        read: function that returns the content of a file.

    Raises:
        OSError: if the first file cannot be read.
        CheckpointError: if a file that the code opens itself has changed since it was copied.
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
        if path.suffix != ".py" and path.read_bytes() != content:
            raise CheckpointError(
                f"{path} has changed since the run was started",
                "the file as the run read it first",
                "undo the change, or name the file in `arguments`, and its copy is read",
            )
        for used in _list_used(content, path, first.parent) if path.suffix == ".py" else ():
            if used not in known_files:
                known_files.add(used)
                pending.append(used)


def _list_used(content: bytes, path: Path, top: Path) -> Iterator[Path]:
    """Yield the files that a source uses: modules, the packages that contain them, and small files that texts name."""
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
    yield from _find_named_files(tree, path.parent)


def _find_named_files(tree: ast.AST, top: Path) -> Iterator[Path]:
    """Yield the small files that texts of a source name, in its folder or in folders of it that its texts name.

    Files that the source itself writes are no inputs.
    """
    written, folders = _list_written(tree), [top]
    names = {text.lstrip("/"): None for text in _list_texts(tree) if len(text) <= MAX_NAME_LETTERS}
    names = {name: None for name in names if Path(name).parts and ".." not in Path(name).parts}
    for folder in folders:
        for target in (folder / name for name in names):
            if os.path.isdir(target):
                if target not in folders and len(folders) < MAX_FOLDER_FILES:
                    folders.append(target)  # the loop goes on with it
            elif target.suffix in COPIED_SUFFIXES and target.name not in written:
                yield from [target] if list_copies(target, target.relative_to(top).as_posix()) else ()


def _list_texts(*trees: ast.AST) -> list[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _list_written(tree: ast.AST) -> set[str]:
    """List the names of the files that a source writes, by texts in their paths or in what variables in these are set to."""
    paths: list[ast.AST] = []
    assigned: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                assigned.setdefault(_get_name(target), []).extend(_list_texts(node.value))
        elif isinstance(node, ast.Call):
            name, owner = _get_name(node.func), [node.func.value] if isinstance(node.func, ast.Attribute) else []
            modes = [*node.args[:2], *(option.value for option in node.keywords if option.arg == "mode")]
            file = [*node.args[:1], *(option.value for option in node.keywords if option.arg in _FILE_OPTIONS)]
            if name == "open" and any(
                isinstance(m, ast.Constant) and _WRITE_MODE.fullmatch(str(m.value)) for m in modes
            ):
                paths += owner + file
            paths += owner if name in _PATH_WRITERS else file if name in _FILE_WRITERS else []
    names = {_get_name(part) for path in paths for part in ast.walk(path)} - {""}
    texts = [*_list_texts(*paths), *(text for name in names for text in assigned.get(name, ()))]
    return {Path(text).name for text in texts}


def _get_name(node: ast.AST) -> str:
    """Return the name of a variable, attribute or function; empty for another expression."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


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
