"""Turns exceptions of user code into errors that show the user's lines instead of ours."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator

from runtime.data.custom.user_code import short_name
from runtime.errors import DrivetrainError
from runtime.job.formatting import printable
from runtime.job.user_files import describe_syntax_error
from runtime.system import torch_errors


@contextlib.contextmanager
def blamed(refuse: Callable[[str], DrivetrainError]) -> Iterator[None]:
    """Turn an exception of user code into `refuse(text)`; the text holds the exception and the user's lines."""
    try:
        yield
    except DrivetrainError:
        raise
    except (Exception, SystemExit) as error:
        if torch_errors.is_out_of_memory(error):
            raise
        raise refuse(told(error)) from error


def told(error: BaseException) -> str:
    """`ValueError: width must be even`, followed by the user's lines that led to it."""
    lines = own_lines(error)
    if isinstance(error, SyntaxError) and error.filename:
        place = describe_syntax_error(short_name(error.filename) or error.filename, error)
        return "\n".join([f"{type(error).__name__}: {place}", *lines])
    text = printable(" ".join(str(error).split()), 500)
    return "\n".join([f"{type(error).__name__}: {text}".removesuffix(": "), *lines])


def own_lines(error: BaseException) -> list[str]:
    """`my_model.py:12: in build: return Net(width)` for each traceback frame in a user file, innermost last."""
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        if short := short_name(frame.filename):
            where = "" if frame.name == "<module>" else f"in {frame.name}: "
            found.append(f"    {short}:{frame.lineno}: {where}{(frame.line or '').strip()}")
    return found
