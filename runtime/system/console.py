"""Standard output: unbuffered lines, and colors or live pictures if it is a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from typing import IO, TYPE_CHECKING

from runtime.errors import DrivetrainError
from runtime.system.printable import printable_json, printable_lines

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """Print a line, unbuffered; on a terminal, which breaks lines inside words, it is broken between words.

    Lines after the first one must be indented: any other line break is taken for one of data, and shown as `\\n`.
    """
    text = printable_lines(text)
    _write("\n".join(map(_wrapped, text.split("\n"))) if sys.stdout.isatty() else text, sys.stdout)


def say_aside(text: str) -> None:
    """Print a line to stderr, for commands whose output goes to another program."""
    _write(printable_lines(text), sys.stderr)


def say_error(error: DrivetrainError) -> None:
    """Print the parts of an error to stderr; the further lines of one, such as an engine's message, are indented."""
    for part in error.lines():
        say_aside(re.sub("\n(?! )", "\n    ", part))


def say_json(value: object, *, ascii_only: bool = True) -> None:
    """Print a value for another program."""
    _write(printable_json(json.dumps(value, indent=1, ensure_ascii=ascii_only)), sys.stdout)


def accept_any_text() -> None:
    """Let stdout and stderr show what their encoding lacks as `\\xe9`, instead of ending the process."""
    for stream in (sys.stdout, sys.stderr):
        _accept_any(stream)


def _accept_any(stream: IO[str]) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _write(text: str, stream: IO[str]) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _wrapped(line: str) -> str:
    """The line, continued with an indent if it is wider than the terminal."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def console(file: IO[str] | None = None) -> Console:
    """A rich console: colors only on a terminal, 100 columns without control characters elsewhere."""
    from runtime.system.clean_console import CleanConsole

    stream = file or sys.stdout
    _accept_any(stream)
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else 100
    # In a notebook rich shows a table beside stdout, even where stdout is redirected to be silent.
    notebook = None if type(stream).__module__.startswith("ipykernel") else False
    return CleanConsole(
        file=stream,
        width=width,
        force_terminal=terminal,
        force_jupyter=notebook,
        highlight=False,
        emoji=False,
        markup=False,
    )


def live_terminal() -> bool:
    """Whether stdout is a terminal that can be painted on."""
    # A notebook gives its `!commands` a terminal, and then shows what they print, codes that move the cursor included.
    notebook = "JPY_PARENT_PID" in os.environ
    return sys.stdout.isatty() and not (os.environ.get("NO_COLOR") or notebook) and os.environ.get("TERM") != "dumb"
