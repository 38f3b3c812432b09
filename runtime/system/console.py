"""Standard output: unbuffered lines, and colors or live pictures if it is a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import IO

from rich.console import Console


def say(text: str) -> None:
    """Print a line, unbuffered; on a terminal, which breaks lines inside words, it is broken between words."""
    print("\n".join(map(_wrapped, text.split("\n"))) if sys.stdout.isatty() else text, flush=True)


def say_aside(text: str) -> None:
    """Print a line to stderr, for commands whose output goes to another program."""
    print(text, file=sys.stderr, flush=True)


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
    stream = file or sys.stdout
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else 100
    # In a notebook rich shows a table beside stdout, even where stdout is redirected to be silent.
    notebook = None if type(stream).__module__.startswith("ipykernel") else False
    return Console(
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
