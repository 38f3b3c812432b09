"""Checks a Python file of the user without running it: its location, its syntax, its functions."""

from __future__ import annotations

import ast
import contextlib
import difflib
import itertools
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drivetrain.errors import Problem, nearest
from drivetrain.job.formatting import format_value
from drivetrain.job.job import Job

KIND = "a Python file next to the job file"
MOST_NAMES = 10_000
"""Largest number of names in a folder among which the nearest is looked for."""


class UserFunction(Protocol):
    """A part of the spec that names a function of the user."""

    @property
    def file(self) -> str: ...
    @property
    def factory(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Signature:
    """The keyword arguments that a function accepts."""

    needed: tuple[str, ...]
    known: tuple[str, ...]
    """All parameters, required ones included."""
    nameless: tuple[str, ...] = ()
    """Required parameters that cannot be passed by keyword."""
    any: bool = False
    """Whether it accepts arbitrary keyword arguments."""


_GONE = "does not exist"
Functions = dict[str, Signature | None]
"""Functions and classes at the top level of a file; None if their parameters are known only at run time."""


def find_misplacement(folder: Path, file: str) -> tuple[str, str, str] | None:
    """Why `file` is no Python file in `folder`, in three parts; None if it is one."""
    path = Path(file)
    if path.suffix != ".py":
        return f"is {format_value(file)}", KIND, "name a .py file"
    if path.is_absolute() or ".." in path.parts:
        return (
            f"is {format_value(file)}",
            f"{KIND}, as a relative path without `..`",
            "put the file next to the job file",
        )
    full = folder / path
    if wrong := find_trouble(full):
        suggestion = wrong == _GONE and (nearest_path((folder,), file) or nearby((folder, Path.cwd()), file))
        return f"{format_value(file)} {wrong}", KIND, suggestion or "check the spelling"
    if not full.is_file():
        return f"{format_value(file)} is not a file", KIND, "name a file"
    if not full.resolve().is_relative_to(folder.resolve()):
        return f"{format_value(file)} is a link to {full.resolve()}", f"{KIND}, links included", "copy the file here"
    return None


def find_trouble(path: Path) -> str | None:
    """Why a path cannot be read, as the end of a sentence; None if it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _GONE
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not a path: {error}"
    return None if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def nearest_path(folders: Sequence[Path], path: str) -> str:
    """`did you mean "x"?` for a path that does not exist below any of these folders; empty if nothing is close.

    It is like the given one, except for the first part that does not exist.
    """
    parts = Path(path).parts
    for folder in folders:
        depth = next((n for n in range(len(parts)) if find_trouble(folder.joinpath(*parts[: n + 1]))), len(parts))
        parent = folder.joinpath(*parts[:depth])
        if depth == len(parts) or not parent.is_dir():
            continue
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            names = [
                entry.name
                for entry in itertools.islice(entries, MOST_NAMES)
                if entry.name.startswith(".") == parts[depth].startswith(".")
                and not entry.name.endswith((".yaml", ".yml"))  # a job file is no data, however alike its name
            ]
            for name in difflib.get_close_matches(parts[depth], names, n=1, cutoff=0.5):
                candidate = Path(*parts[:depth], name, *parts[depth + 1 :])
                if not find_trouble(folder / candidate):
                    return f'did you mean "{candidate}"?'
    return ""


def nearby(folders: Sequence[Path], path: str) -> str:
    """What to do if a file of the same name lies near these folders; empty if none does.

    It is looked for in the folders, in those that they contain or lie in: a job file that was copied has left its
    files there.
    """
    name = Path(path).name
    around = (near for folder in folders for near in (folder.resolve(), folder.resolve().parent))
    for near in dict.fromkeys(around):
        with contextlib.suppress(OSError, ValueError), os.scandir(near) as entries:
            below = [entry.path for entry in itertools.islice(entries, MOST_NAMES) if entry.is_dir()]
            for inside in (str(near), *sorted(below)):
                if name and os.path.exists(candidate := os.path.join(inside, name)):
                    return f"paths start from the folder of the job file; is it {candidate}? copy it there, or change the path"
    return ""


def problems(job: Job, key: tuple[str, ...], part: UserFunction, offered: Sequence[str] = ()) -> Iterator[Problem]:
    """Problems of the file and the function of one part.

    Args:
        job: its folder contains the file.
        key: of the part: `model`.
        part: file, function and arguments.
        offered: names of arguments that the runtime passes if the function has them.
    """
    functions = find_functions(job, key, part.file)
    if isinstance(functions, Problem):
        yield functions
        return
    if part.factory not in functions and "*" not in functions:
        yield unknown_function(job, (*key, "factory"), part.factory, part.file, functions)
    elif signature := functions.get(part.factory):
        yield from _arguments(job, key, part, signature, offered)


def find_functions(job: Job, key: tuple[str, ...], file: str) -> Functions | Problem:
    """The functions and classes of a file, or why it cannot be read."""
    path = (*key, "file")
    if wrong := find_misplacement(job.folder, file):
        return job.problem(path, *wrong)
    try:
        text = (job.folder / file).read_bytes()
        if b"\0" in text:  # Python's own message depends on its version
            raise ValueError("it holds null bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, file)
    except SyntaxError as error:
        return job.problem(
            path,
            f"{describe_syntax_error(file, error)}",
            f"what Python {platform.python_version()} understands",
            "fix this line, or the one before it",
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return job.problem(
            path, f"{file} cannot be read: {error}", "a text file with Python code", "save it again as text"
        )
    return dict(_definitions(tree.body))


def describe_syntax_error(file: str, error: SyntaxError) -> str:
    """`my_model.py:3:9: invalid syntax`, followed by the line."""
    line = f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""
    return f"{file}:{error.lineno or 1}:{error.offset or 1}: {error.msg}{line}"


def unknown_function(job: Job, path: tuple[str, ...], name: str, file: str, functions: Functions) -> Problem:
    """A problem with the name of a function that the file does not have."""
    public = [function for function in functions if not function.startswith("_")]
    return job.problem(
        path,
        f"{file} has no function or class {format_value(name)} at its top level",
        f"one of {', '.join(public)}" if public else "a function or class at its top level",
        nearest(name, public) or f"write `def {name}(...):`, or name another",
    )


def _arguments(
    job: Job, key: tuple[str, ...], part: UserFunction, signature: Signature, offered: Sequence[str]
) -> Iterator[Problem]:
    """Arguments that the function does not accept, and required ones that are missing."""
    name, path = part.factory, (*key, "arguments")
    if signature.nameless:
        yield job.problem(
            (*key, "factory"),
            f"{name}() has positional-only parameters: {', '.join(signature.nameless)}",
            "parameters that can be passed by name",
            "remove the `/` from its signature",
        )
    for argument in part.arguments:
        if argument not in signature.known and not signature.any:
            possible = (
                f"arguments of {name}(): {', '.join(signature.known)}" if signature.known else f"{name}() has none"
            )
            yield job.problem(
                (*path, argument),
                f"{name}() in {part.file} has no such argument",
                possible,
                nearest(argument, signature.known) or "remove it",
            )
    lacking = [
        parameter_name
        for parameter_name in signature.needed
        if parameter_name not in part.arguments and parameter_name not in offered
    ]
    if lacking:
        given_by_us = f"; {', '.join(offered)} are set from the data" if offered else ""
        yield job.problem(
            path,
            f"{name}() in {part.file} needs {', '.join(lacking)}",
            f"a value for each argument without a default{given_by_us}",
            f"add `arguments: {{{lacking[0]}: ...}}`, or give it a default",
        )


def _definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Signature | None]]:
    """Every name that the statements bind."""
    for node in body:
        match node:
            case ast.FunctionDef():
                # A decorator can change the parameters of a function.
                yield node.name, None if node.decorator_list else _signature(node.args)
            case ast.ClassDef():
                yield node.name, _constructor(node)
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.split(".")[0], None) for alias in node.names)
            case ast.Assign():
                yield from ((target.id, None) for target in node.targets if isinstance(target, ast.Name))
            case ast.If() | ast.With():
                yield from _definitions([*node.body, *getattr(node, "orelse", [])])
            case ast.Try():
                handlers = [statement for handler in node.handlers for statement in handler.body]
                yield from _definitions([*node.body, *handlers, *node.orelse, *node.finalbody])


def _constructor(node: ast.ClassDef) -> Signature | None:
    constructors = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    if not constructors or constructors[0].decorator_list or node.decorator_list or node.keywords:
        return None
    return _signature(constructors[0].args, bound=1)


def _signature(arguments: ast.arguments, bound: int = 0) -> Signature:
    """The parameters without the first `bound` ones."""
    count = len(arguments.posonlyargs) + len(arguments.args)
    free = count - len(arguments.defaults)
    positional = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    nameless = positional[bound : min(len(arguments.posonlyargs), free)]
    named = positional[max(bound, len(arguments.posonlyargs)) :]
    by_name = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    needed = [name for name in positional[bound:free] if name in named]
    return Signature(
        needed=(*needed, *(parameter.arg for parameter, default in by_name if default is None)),
        known=(*named, *(parameter.arg for parameter, _ in by_name)),
        nameless=tuple(nameless),
        any=arguments.kwarg is not None,
    )
