"""Blame: what the person's own code raised, told by their own lines instead of ours."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator

from runtime.data.custom.user_code import short_name
from runtime.errors import DrivetrainError
from runtime.job.formatting import printable
from runtime.job.user_files import mistake
from runtime.system import torch_errors


@contextlib.contextmanager
def blamed(refuse: Callable[[str], DrivetrainError]) -> Iterator[None]:
    """Turn what the person's code raises into `refuse(what was raised, and the person's own lines)`."""
    try:
        yield
    except DrivetrainError:
        raise
    except (Exception, SystemExit) as error:
        if torch_errors.is_exhausted(error):
            raise
        raise refuse(told(error)) from error


def told(error: BaseException) -> str:
    """`ValueError: width must be even`, and below it the person's own lines that led there."""
    lines = own_lines(error)
    if isinstance(error, SyntaxError) and error.filename:
        place = mistake(short_name(error.filename) or error.filename, error)
        return "\n".join([f"{type(error).__name__}: {place}", *lines])
    text = printable(" ".join(str(error).split()), 500)
    return "\n".join([f"{type(error).__name__}: {text}".removesuffix(": "), *lines])


def own_lines(error: BaseException) -> list[str]:
    """`my_model.py:12: in build: return Net(width)` for each frame in a file of the person's own, the last one last."""
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        if short := short_name(frame.filename):
            where = "" if frame.name == "<module>" else f"in {frame.name}: "
            found.append(f"    {short}:{frame.lineno}: {where}{(frame.line or '').strip()}")
    return found
