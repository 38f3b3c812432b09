"""Turns exceptions of user code into errors that show the user's lines instead of lines of this package."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from drivetrain.data.custom.user_code import find_short_name
from drivetrain.errors import DrivetrainError
from drivetrain.job.formatting import printable
from drivetrain.job.user_files import describe_syntax_error
from drivetrain.system import torch_errors

_INSTALLED = (str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"])
"""Folders of this package and of Python's standard library, whose lines the user cannot change."""


@contextlib.contextmanager
def blame_user_code(
    refuse: Callable[[str, str, str], DrivetrainError], call: str, possible: str = "", action: str | None = None
) -> Iterator[None]:
    """Turn an exception of user code into `refuse("CALL ERROR", possible, action)`; CALL is such as `build() raised`.

    The error is followed by the user's lines and the layer; without an action, it suggests changing these.
    """
    try:
        yield
    except DrivetrainError:
        raise
    except (Exception, SystemExit) as error:
        if torch_errors.is_out_of_memory(error):
            raise
        action = suggest_action(error) if action is None else action
        raise refuse(f"{call} {describe_error(error)}", possible, action) from error


def describe_error(error: BaseException) -> str:
    """Describe an error as `ValueError: width must be even`, followed by the user's lines that led to it."""
    lines = list_user_lines(error)
    if isinstance(error, SyntaxError) and error.filename:
        syntax_error = describe_syntax_error(find_short_name(error.filename) or error.filename, error)
        return "\n".join([f"{type(error).__name__}: {syntax_error}", *lines])
    text = printable(" ".join(str(error).split()), 500)
    layer_lines = [f"    in {layer}"] if (layer := _find_layer(error)) else []
    return "\n".join([f"{type(error).__name__}: {text}".removesuffix(": "), *lines, *layer_lines])


def suggest_action(error: BaseException) -> str:
    """Suggest an action for an exception of user code, which may have no line of the user's."""
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and (lacks := _suggest_install(error.name.partition(".")[0]))
    ):
        return lacks
    if list_user_lines(error):
        return "fix these lines"
    if _find_layer(error):
        return "change this layer, or what it gets: the data, or the layer before it"
    return "correct what this message names"


def _suggest_install(package: str) -> str:
    """Suggest how to install a missing package; empty for an installed one."""
    if find_spec(package):
        return ""
    if os.environ.get("DRIVETRAIN_IMAGE"):
        return (
            f"the image has no {package}: do without it, or train without a container: `make setup`, "
            f"`.venv/bin/pip install {package}`, `.venv/bin/drivetrain train JOB`"
        )
    return f"if it is a package: `{sys.executable} -m pip install {package}`; a file of yours must lie beside this one"


def list_user_lines(error: BaseException) -> list[str]:
    """List the traceback frames in user files, innermost last: `my_model.py:12: in build: return Net(width)`.

    If there is none, list the frames of the program that called the runtime: outside this and installed packages.
    """
    return list_user_frames(traceback.extract_tb(error.__traceback__))


def list_user_frames(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    """List the user's lines of these frames, in the form of `list_user_lines`."""
    user_frames = [(short, frame) for frame in frames if (short := find_short_name(frame.filename))]
    user_frames = user_frames or [
        (Path(frame.filename).name, frame)
        for frame in frames
        if not frame.filename.startswith((*_INSTALLED, "<frozen"))
        and not re.search("(site|dist)-packages", frame.filename)
    ]
    return [
        f"    {name}:{frame.lineno}: {'' if frame.name == '<module>' else f'in {frame.name}: '}{(frame.line or '').strip()}"
        for name, frame in user_frames
    ]


def _find_layer(error: BaseException) -> str:
    """Find the layer that raised the error after the user's lines: `layer body.2: Linear(in_features=5, ...)`.

    Empty if the last frame with a layer belongs to the user.
    """
    layers: list[nn.Module] = []
    is_inside_layer = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer, is_user_code = frame.f_locals.get("self"), bool(find_short_name(frame.f_code.co_filename))
        if isinstance(layer, nn.Module):
            layers.append(layer)
        is_inside_layer = not is_user_code and (is_inside_layer or isinstance(layer, nn.Module))
    if not is_inside_layer:
        return ""
    last = layers[-1]
    name = next((name for name, module in layers[0].named_modules() if module is last), "")
    kind = type(last).__name__ if next(last.children(), None) else printable(" ".join(repr(last).split()), 200)
    return f"layer {name}: {kind}" if name else f"the network: {kind}"
