"""Standard output: unbuffered lines, and colors or live pictures if it is a terminal."""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console


def say(text: str) -> None:
    """Print a line, unbuffered."""
    print(text, flush=True)


def console(file: IO[str] | None = None) -> Console:
    """A rich console: colors only on a terminal, 100 columns without control characters elsewhere."""
    stream = file or sys.stdout
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else 100
    return Console(file=stream, width=width, force_terminal=terminal, highlight=False, emoji=False, markup=False)


def live_terminal() -> bool:
    """Whether stdout is a terminal that can be painted on."""
    # A notebook gives its `!commands` a terminal, and then shows what they print, codes that move the cursor included.
    notebook = "JPY_PARENT_PID" in os.environ
    return sys.stdout.isatty() and not (os.environ.get("NO_COLOR") or notebook) and os.environ.get("TERM") != "dumb"
