"""A rich console for text of data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from drivetrain.system.printable import printable_as_long, printable_lines


class CleanConsole(Console):
    """A console that shows the control characters of data, and does not run them."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything that can be printed; rich removes a few control characters itself, but no escapes."""
        if isinstance(renderable, str):
            renderable = printable_lines(renderable)
        elif isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable_as_long(renderable.plain)
        return super().render(renderable, options)

    def on_broken_pipe(self) -> None:
        """Let the command decide about a closed pipe; rich would end the process with 1."""
        raise BrokenPipeError
