"""Painter: keeps one picture at the end of a terminal; what is printed meanwhile appears above it, line by line."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

Picture = Callable[[int], RenderableType]
"""Makes the picture for so many columns."""


class Painter:
    """Paints over its last picture. The cursor stays where it is seen: a process that is killed leaves it so."""

    def __init__(self, console: Console) -> None:
        self.console, self.lines, self.size = console, 0, console.size
        self.said = _CapturedStream()
        self.lock = threading.Lock()
        self.streams: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Take over the standard streams."""
        self.streams = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = cast(TextIO, self.said)

    def leave(self) -> None:
        """Give the streams back; the last picture stays where it is."""
        if self.streams:
            sys.stdout, sys.stderr = self.streams
            self.streams = None
        with self.lock:
            self.lines = 0
            self._put("")

    def paint(self, picture: Picture) -> None:
        """Paint a picture where the last one was."""
        with self.lock:
            size = self.console.size
            with self.console.capture() as capture:
                self.console.print(picture(size.width - 1))
            # Lines beyond the top of the terminal could never be painted over.
            lines = capture.get().splitlines(keepends=True)[: max(1, size.height - 1)]
            self._put("".join(lines))
            self.lines = len(lines)

    def _put(self, text: str) -> None:
        """Take the last picture away, and write what was said since, then `text`, at once."""
        size = self.console.size
        if self.lines and size.width < self.size.width:
            # A narrower terminal has broken the lines, nobody knows where: begin on an empty page.
            away = "\x1b[2J\x1b[H"
        else:
            away = f"\x1b[{self.lines}F\x1b[J" if self.lines else ""
        self.size, self.lines = size, 0
        self.console.file.write(away + self.said.take() + text)
        self.console.file.flush()


class _CapturedStream(io.TextIOBase):
    """Stands in for the standard streams while a picture is kept; holds whole lines until the next one."""

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
        """Everything said since the last time, ended as a line."""
        count = len(self.text)
        said = "".join(self.text[:count])
        del self.text[:count]
        return said if not said or said.endswith("\n") else said + "\n"
