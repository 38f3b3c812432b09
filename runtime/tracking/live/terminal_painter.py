"""Keeps a picture at the bottom of a terminal; text that is printed meanwhile appears above it."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

Picture = Callable[[int], RenderableType]
"""Makes the picture for the given number of columns."""


class Painter:
    """Repaints its last picture. The cursor stays visible, so that a killed process does not leave it hidden."""

    def __init__(self, console: Console) -> None:
        self.console, self.lines, self.size = console, 0, console.size
        self.said = _CapturedStream()
        self.lock = threading.Lock()
        self.streams: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Redirect stdout and stderr."""
        self.streams = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = cast(TextIO, self.said)

    def leave(self) -> None:
        """Restore the streams; the last picture stays on the screen."""
        if self.streams:
            sys.stdout, sys.stderr = self.streams
            self.streams = None
        with self.lock:
            self.lines = 0
            self._put("")

    def paint(self, picture: Picture) -> None:
        """Replace the last picture."""
        with self.lock:
            size = self.console.size
            with self.console.capture() as capture:
                self.console.print(picture(size.width - 1))
            # Lines beyond the top of the terminal could never be repainted.
            lines = capture.get().splitlines(keepends=True)[: max(1, size.height - 1)]
            self._put("".join(lines))
            self.lines = len(lines)

    def _put(self, text: str) -> None:
        """Erase the last picture, write the text printed since, then `text`, in a single write."""
        size = self.console.size
        if self.lines and size.width < self.size.width:
            # A narrower terminal has rewrapped the lines in an unknown way: clear the screen.
            away = "\x1b[2J\x1b[H"
        else:
            away = f"\x1b[{self.lines}F\x1b[J" if self.lines else ""
        self.size, self.lines = size, 0
        self.console.file.write(away + self.said.take() + text)
        self.console.file.flush()


class _CapturedStream(io.TextIOBase):
    """Replaces a standard stream while a picture is shown; buffers lines until the next repaint."""

    def __init__(self) -> None:
        self.text: list[str] = []

    def write(self, text: str) -> int:
        self.text.append(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def take(self) -> str:
        """All text since the last call, completed to whole lines."""
        count = len(self.text)
        said = "".join(self.text[:count])
        del self.text[:count]
        return said if not said or said.endswith("\n") else said + "\n"
