"""Checks a Python file of the user without running it: location, syntax and functions."""

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
CHECK_PATH = "check the spelling; paths start from the folder of the job file"
MAX_COMPARED_NAMES = 10_000
"""Largest number of names in a folder that are compared with a misspelled name."""


class UserFunction(Protocol):
    """A section of the spec that names a function of the user."""

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
    """All parameters that can be passed by keyword, including the required ones."""
    positional_only: tuple[str, ...] = ()
    """Required parameters that cannot be passed by keyword."""
    accepts_any: bool = False
    """Whether it accepts arbitrary keyword arguments."""


_MISSING = "does not exist"
Functions = dict[str, Signature | None]
"""Functions and classes at the top level of a file; None if their parameters are known only at run time."""


def find_misplacement(folder: Path, file: str) -> tuple[str, str, str] | None:
    """Explain why `file` is not a Python file in `folder`, in the three parts of a problem; None if it is one."""
    path = Path(file)
    if path.suffix != ".py":
        return f"is {format_value(file)}", KIND, "name a .py file"
    if path.is_absolute() or ".." in path.parts:
        possible = f"{KIND}, as a relative path without `..`"
        return f"is {format_value(file)}", possible, "put the file next to the job file"
    full = folder / path
    obstacle = find_obstacle(full)
    if obstacle:
        suggestion = suggest_nearest_path((folder,), file) if obstacle == _MISSING else ""
        return f"{format_value(file)} {obstacle}", KIND, suggestion or CHECK_PATH
    if not full.is_file():
        return f"{format_value(file)} is not a file", KIND, "name a file"
    if not full.resolve().is_relative_to(folder.resolve()):
        return f"{format_value(file)} is a link to {full.resolve()}", f"{KIND}, links included", "copy the file here"
    return None


def find_obstacle(path: Path) -> str | None:
    """Explain why a path cannot be read, as the end of a sentence; None if it can be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not a path: {error}"
    special = describe_special_file(path)
    if special:
        return special
    return None if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def suggest_nearest_path(folders: Sequence[Path], path: str) -> str:
    """Suggest a similar path that exists below one of the folders; empty if there is none.

    The suggestion replaces the first component of `path` that does not exist.
    """
    names = Path(path).parts
    for folder in folders:
        depth = 0
        while depth < len(names) and not find_obstacle(folder.joinpath(*names[: depth + 1])):
            depth += 1
        parent = folder.joinpath(*names[:depth])
        if depth == len(names) or not parent.is_dir():
            continue
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            candidates = [
                entry.name
                for entry in itertools.islice(entries, MAX_COMPARED_NAMES)
                if entry.name.startswith(".") == names[depth].startswith(".")
                and not entry.name.endswith((".yaml", ".yml"))  # a job file is not data, even if its name is similar
            ]
            for name in difflib.get_close_matches(names[depth], candidates, n=1, cutoff=0.5):
                candidate = Path(*names[:depth], name, *names[depth + 1 :])
                if not find_obstacle(folder / candidate):
                    return f'did you mean "{candidate}"?'
    return ""


def find_problems(
    job: Job, key: tuple[str, ...], settings: UserFunction, offered: Sequence[str] = ()
) -> Iterator[Problem]:
    """Yield the problems of the file and the function of one section.

    Args:
        job: job whose folder contains the file.
        key: key of the section, such as `model`.
        settings: file, function and arguments.
        offered: names of arguments that the runtime passes if the function has them.
    """
    functions = find_functions(job, key, settings.file)
    if isinstance(functions, Problem):
        yield functions
        return
    signature = functions.get(settings.factory)
    if settings.factory not in functions and "*" not in functions:
        yield make_function_problem(job, (*key, "factory"), settings.factory, settings.file, functions)
    elif signature:
        yield from _check_arguments(job, key, settings, signature, offered)


def find_functions(job: Job, key: tuple[str, ...], file: str) -> Functions | Problem:
    """Find the functions and classes of a file; a file that cannot be read is a problem."""
    path = (*key, "file")
    misplacement = find_misplacement(job.folder, file)
    if misplacement:
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
            describe_syntax_error(file, error),
            f"code for Python {platform.python_version()}",
            "fix this line, or the one before it",
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return job.problem(
            path, f"{file} cannot be read: {error}", "a text file with Python code", "save it again as text"
        )
    return dict(_list_definitions(tree.body))


def describe_syntax_error(file: str, error: SyntaxError) -> str:
    """Return the position and text of a syntax error, as in `my_model.py:3:9: invalid syntax`, followed by the line."""
    line = f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""
    return f"{file}:{error.lineno or 1}:{error.offset or 1}: {error.msg}{line}"


def make_function_problem(job: Job, path: tuple[str, ...], name: str, file: str, functions: Functions) -> Problem:
    """Return the problem of a key that names a function which the file does not have."""
    public = [function for function in functions if not function.startswith("_")]
    return job.problem(
        path,
        f"{file} has no function or class {format_value(name)} at its top level",
        f"one of {', '.join(public)}" if public else "a function or class at its top level",
        nearest(name, public) or f"write `def {name}(...):`, or name another",
    )


def _check_arguments(
    job: Job, key: tuple[str, ...], settings: UserFunction, signature: Signature, offered: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for each argument that the function does not accept, and for missing required arguments."""
    name, path = settings.factory, (*key, "arguments")
    if signature.positional_only:
        yield job.problem(
            (*key, "factory"),
            f"{name}() has positional-only parameters: {', '.join(signature.positional_only)}",
            "parameters that can be passed by name",
            "remove the `/` from its signature",
        )
    for argument in settings.arguments:
        if argument not in signature.parameters and not signature.accepts_any:
            names = ", ".join(signature.parameters)
            possible = f"arguments of {name}(): {names}" if names else f"{name}() has none"
            yield job.problem(
                (*path, argument),
                f"{name}() in {settings.file} has no such argument",
                possible,
                nearest(argument, signature.parameters) or "remove it",
            )
    missing = [
        argument for argument in signature.required if argument not in settings.arguments and argument not in offered
    ]
    if missing:
        offered_text = f"; {', '.join(offered)} are set from the data" if offered else ""
        yield job.problem(
            path,
            f"{name}() in {settings.file} needs {', '.join(missing)}",
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
    """Read the parameters of a class; None if they are known only at run time, as with a decorator or metaclass."""
    constructors = [method for method in node.body if isinstance(method, ast.FunctionDef) and method.name == "__init__"]
    if not constructors or constructors[0].decorator_list or node.decorator_list or node.keywords:
        return None
    return _read_signature(constructors[0].args, bound_count=1)


def _read_signature(arguments: ast.arguments, bound_count: int = 0) -> Signature:
    """Read the parameters after the first `bound_count`, which are bound, such as `self`."""
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
