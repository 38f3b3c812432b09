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
from drivetrain.system.files import describe_special_file

KIND = "a Python file next to the job file"
MAX_COMPARED_NAMES = 10_000
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

    required: tuple[str, ...]
    parameters: tuple[str, ...]
    """All parameters that can be passed by keyword, also the required ones."""
    positional_only: tuple[str, ...] = ()
    """Required parameters that cannot be passed by keyword."""
    accepts_any: bool = False
    """Whether it accepts arbitrary keyword arguments."""


_MISSING = "does not exist"
Functions = dict[str, Signature | None]
"""Functions and classes at the top level of a file; None if their parameters are known only at run time."""


def find_misplacement(folder: Path, file: str) -> tuple[str, str, str] | None:
    """Explain why `file` is no Python file in `folder`, as the three parts of a problem; None if it is one."""
    path = Path(file)
    if path.suffix != ".py":
        return f"is {format_value(file)}", KIND, "name a .py file"
    if path.is_absolute() or ".." in path.parts:
        possible = f"{KIND}, as a relative path without `..`"
        return f"is {format_value(file)}", possible, "put the file next to the job file"
    full = folder / path
    if obstacle := find_obstacle(full):
        suggestion = obstacle == _MISSING and (
            suggest_nearest_path((folder,), file) or suggest_nearby_file((folder, Path.cwd()), file)
        )
        return f"{format_value(file)} {obstacle}", KIND, suggestion or "check the spelling"
    if not full.is_file():
        return f"{format_value(file)} is not a file", KIND, "name a file"
    if not full.resolve().is_relative_to(folder.resolve()):
        return f"{format_value(file)} is a link to {full.resolve()}", f"{KIND}, links included", "copy the file here"
    return None


def find_obstacle(path: Path) -> str | None:
    """Explain why a path cannot be read, as the end of a sentence; None if it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not a path: {error}"
    if special := describe_special_file(path):
        return special
    return None if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def suggest_nearest_path(folders: Sequence[Path], path: str) -> str:
    """`did you mean "x"?` for a path that does not exist below any of these folders; empty if nothing is close.

    The suggestion differs from `path` in the first part that does not exist.
    """
    parts = Path(path).parts
    for folder in folders:
        depth = next((n for n in range(len(parts)) if find_obstacle(folder.joinpath(*parts[: n + 1]))), len(parts))
        parent = folder.joinpath(*parts[:depth])
        if depth == len(parts) or not parent.is_dir():
            continue
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            names = [
                entry.name
                for entry in itertools.islice(entries, MAX_COMPARED_NAMES)
                if entry.name.startswith(".") == parts[depth].startswith(".")
                and not entry.name.endswith((".yaml", ".yml"))  # a job file is no data, however alike its name
            ]
            for name in difflib.get_close_matches(parts[depth], names, n=1, cutoff=0.5):
                candidate = Path(*parts[:depth], name, *parts[depth + 1 :])
                if not find_obstacle(folder / candidate):
                    return f'did you mean "{candidate}"?'
    return ""


def suggest_nearby_file(folders: Sequence[Path], path: str) -> str:
    """Return a hint if a file of the same name is near these folders; empty if there is none.

    The folders, their parents, and their subfolders are searched, where the files of a copied job file may have stayed.
    """
    name = Path(path).name
    search_folders = (folder_near for folder in folders for folder_near in (folder.resolve(), folder.resolve().parent))
    for folder_near in dict.fromkeys(search_folders):
        with contextlib.suppress(OSError, ValueError), os.scandir(folder_near) as entries:
            subfolders = [entry.path for entry in itertools.islice(entries, MAX_COMPARED_NAMES) if entry.is_dir()]
            for candidate_folder in (str(folder_near), *sorted(subfolders)):
                if name and os.path.exists(candidate := os.path.join(candidate_folder, name)):
                    return f"paths start from the folder of the job file; is it {candidate}? copy it there, or change the path"
    return ""


def find_problems(job: Job, key: tuple[str, ...], part: UserFunction, offered: Sequence[str] = ()) -> Iterator[Problem]:
    """Find problems of the file and the function of one part.

    Args:
        job: its folder contains the file.
        key: the key of the part, such as `model`.
        part: file, function and arguments.
        offered: names of arguments that the runtime passes if the function has them.
    """
    functions = find_functions(job, key, part.file)
    if isinstance(functions, Problem):
        yield functions
        return
    if part.factory not in functions and "*" not in functions:
        yield make_function_problem(job, (*key, "factory"), part.factory, part.file, functions)
    elif signature := functions.get(part.factory):
        yield from _check_arguments(job, key, part, signature, offered)


def find_functions(job: Job, key: tuple[str, ...], file: str) -> Functions | Problem:
    """Find the functions and classes of a file, or why it cannot be read."""
    path = (*key, "file")
    if misplacement := find_misplacement(job.folder, file):
        return job.problem(path, *misplacement)
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
    return dict(_list_definitions(tree.body))


def describe_syntax_error(file: str, error: SyntaxError) -> str:
    """`my_model.py:3:9: invalid syntax`, followed by the line."""
    line = f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""
    return f"{file}:{error.lineno or 1}:{error.offset or 1}: {error.msg}{line}"


def make_function_problem(job: Job, path: tuple[str, ...], name: str, file: str, functions: Functions) -> Problem:
    """Make a problem with the name of a function that the file does not have."""
    public = [function for function in functions if not function.startswith("_")]
    return job.problem(
        path,
        f"{file} has no function or class {format_value(name)} at its top level",
        f"one of {', '.join(public)}" if public else "a function or class at its top level",
        nearest(name, public) or f"write `def {name}(...):`, or name another",
    )


def _check_arguments(
    job: Job, key: tuple[str, ...], part: UserFunction, signature: Signature, offered: Sequence[str]
) -> Iterator[Problem]:
    """Problems of arguments that the function does not accept, and of required ones that are missing."""
    name, path = part.factory, (*key, "arguments")
    if signature.positional_only:
        yield job.problem(
            (*key, "factory"),
            f"{name}() has positional-only parameters: {', '.join(signature.positional_only)}",
            "parameters that can be passed by name",
            "remove the `/` from its signature",
        )
    for argument in part.arguments:
        if argument not in signature.parameters and not signature.accepts_any:
            names = ", ".join(signature.parameters)
            possible = f"arguments of {name}(): {names}" if names else f"{name}() has none"
            yield job.problem(
                (*path, argument),
                f"{name}() in {part.file} has no such argument",
                possible,
                nearest(argument, signature.parameters) or "remove it",
            )
    missing = [one for one in signature.required if one not in part.arguments and one not in offered]
    if missing:
        offered_text = f"; {', '.join(offered)} are set from the data" if offered else ""
        yield job.problem(
            path,
            f"{name}() in {part.file} needs {', '.join(missing)}",
            f"a value for each argument without a default{offered_text}",
            f"add `arguments: {{{missing[0]}: ...}}`, or give it a default",
        )


def _list_definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Signature | None]]:
    """Yield every name that the statements bind, with its signature if it is known."""
    for node in body:
        match node:
            case ast.FunctionDef():
                # A decorator can change the parameters of a function.
                yield node.name, None if node.decorator_list else _read_signature(node.args)
            case ast.ClassDef():
                yield node.name, _read_constructor(node)
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.split(".")[0], None) for alias in node.names)
            case ast.Assign():
                yield from ((target.id, None) for target in node.targets if isinstance(target, ast.Name))
            case ast.If() | ast.With():
                yield from _list_definitions([*node.body, *getattr(node, "orelse", [])])
            case ast.Try():
                handlers = [statement for handler in node.handlers for statement in handler.body]
                yield from _list_definitions([*node.body, *handlers, *node.orelse, *node.finalbody])


def _read_constructor(node: ast.ClassDef) -> Signature | None:
    constructors = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    if not constructors or constructors[0].decorator_list or node.decorator_list or node.keywords:
        return None
    return _read_signature(constructors[0].args, bound_count=1)


def _read_signature(arguments: ast.arguments, bound_count: int = 0) -> Signature:
    """Read the parameters without the first `bound_count`, such as `self`."""
    count = len(arguments.posonlyargs) + len(arguments.args)
    required_count = count - len(arguments.defaults)
    positional = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    positional_only = positional[bound_count : min(len(arguments.posonlyargs), required_count)]
    by_position_or_name = positional[max(bound_count, len(arguments.posonlyargs)) :]
    keyword_only = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    required_names = [name for name in positional[bound_count:required_count] if name in by_position_or_name]
    return Signature(
        required=(*required_names, *(parameter.arg for parameter, default in keyword_only if default is None)),
        parameters=(*by_position_or_name, *(parameter.arg for parameter, _ in keyword_only)),
        positional_only=tuple(positional_only),
        accepts_any=arguments.kwarg is not None,
    )
