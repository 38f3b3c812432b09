"""Standard output: unbuffered lines, and colors or live pictures if it is a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from drivetrain.errors import DrivetrainError, StorageError
from drivetrain.system.printable import printable_json, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

VERBOSE_VARIABLE = "DRIVETRAIN_VERBOSE"
"""Set by `-v`, also for the processes that this one starts: then details are printed, too."""
SILENT_SECONDS = 5.0
"""Seconds after which `report_if_slow` prints a line: on a busy machine an import can take a minute."""


class Detail(str):
    """A line that is printed only if details are asked for; the run's records have it always."""


def say(text: str) -> None:
    """Print a line, unbuffered; on a terminal, which breaks lines inside words, it is broken between words.

    Lines after the first one must be indented: any other line break is taken for one of data, and shown as `\\n`.
    """
    if isinstance(text, Detail) and not is_verbose():
        return
    text = printable_lines(text)
    _write("\n".join(map(_wrap, text.split("\n"))) if sys.stdout.isatty() else text, sys.stdout)


@contextlib.contextmanager
def redirect_output(numbers: Sequence[int], target: int) -> Iterator[None]:
    """Redirect these file descriptors of this process and its children to another one during the block."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = [os.dup(number) for number in numbers]
    try:
        for number in numbers:
            os.dup2(target, number)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, copy in zip(numbers, saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def is_verbose() -> bool:
    """Return whether details are printed."""
    return bool(os.environ.get(VERBOSE_VARIABLE))


def say_aside(text: str) -> None:
    """Print a line to stderr, for commands whose output goes to another program."""
    _write(printable_lines(text), sys.stderr)


def say_error(error: DrivetrainError) -> None:
    """Print the parts of an error to stderr; the further lines of one, such as an engine's message, are indented."""
    for line in error.lines():
        say_aside(re.sub("\n(?! )", "\n    ", line))


def say_json(value: object, *, ascii_only: bool = True) -> None:
    """Print a value for another program."""
    _write(printable_json(json.dumps(value, indent=1, ensure_ascii=ascii_only)), sys.stdout)


class GuardedStream:
    """A standard stream whose failure, by a closed pipe, a lost terminal or a full disk, ends no run.

    Args:
        stream: the stream.
        needed: whether the command was called for this text. Else text that cannot be written is dropped.
    """

    def __init__(self, stream: IO[str], *, needed: bool) -> None:
        self.stream, self.needed = stream, needed
        self.failure = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length.

        Raises:
            BrokenPipeError: if it is needed, and nobody reads it any more.
            StorageError: if it is needed, and cannot be written.
        """
        self._try(lambda: self.stream.write(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        """Hand everything to the operating system; raises as `write` does."""
        self._try(self.stream.flush)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and not self.stream.closed:
                raise
            if not self.failure:
                self.failure = (error.strerror if isinstance(error, OSError) else None) or str(error)
                self._report(error)

    def _report(self, error: Exception) -> None:
        """Say that the text is lost, or raise the error, once: Python tries the same text again at its end."""
        if self.needed:
            if isinstance(error, BrokenPipeError):
                raise error
            raise StorageError(
                f"standard output cannot be written: {self.failure}",
                "a terminal, a program that reads it, or a file on a disk with free space",
                "free space or choose another file, and run the same command again",
            )
        if self is sys.stdout:
            say_aside(f"output: {describe_lost_output()}")


def guard_output(*, needed: bool = False) -> None:
    """Let this process outlive its standard streams; it fails without stdout if that is `needed` for its result."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed by our starter: the next opened file would be printed into
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r"))
    sys.stdout = _guard_stream(sys.stdout, needed=needed)
    sys.stderr = _guard_stream(sys.stderr, needed=False)


def _guard_stream(stream: TextIO, *, needed: bool) -> TextIO:
    _escape_unencodable(stream)
    inner = stream.stream if isinstance(stream, GuardedStream) else stream
    return cast(TextIO, GuardedStream(inner, needed=needed))


@contextlib.contextmanager
def guard_block() -> Iterator[None]:
    """Let the block outlive the standard streams, in a program that is not ours."""
    streams = sys.stdout, sys.stderr
    guard_output()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def describe_lost_output() -> str:
    """Describe output that stdout no longer takes, for a message; empty if nothing was lost."""
    failure = getattr(sys.stdout, "failure", "")
    return f"stdout cannot be written ({failure}); the run goes on, and its folder has everything" if failure else ""


def _escape_unencodable(stream: IO[str]) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _write(text: str, stream: IO[str]) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _wrap(line: str) -> str:
    """Return the line, continued with an indent if it is wider than the terminal."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def open_console(file: IO[str] | None = None) -> Console:
    """Return a rich console: colors only on a terminal, 100 columns without control characters elsewhere."""
    from drivetrain.system.clean_console import CleanConsole

    stream = file or sys.stdout
    _escape_unencodable(stream)
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else 100
    # In a notebook rich shows a table beside stdout, even where stdout is redirected to be silent.
    notebook = None if type(getattr(stream, "stream", stream)).__module__.startswith("ipykernel") else False
    return CleanConsole(
        file=stream,
        width=width,
        force_terminal=terminal,
        force_jupyter=notebook,
        highlight=False,
        emoji=False,
        markup=False,
    )


def is_live_terminal() -> bool:
    """Return whether stdout is a terminal that can be painted on."""
    # A notebook gives its `!commands` a terminal, and then shows their output, codes that move the cursor included.
    notebook = "JPY_PARENT_PID" in os.environ
    return sys.stdout.isatty() and not (os.environ.get("NO_COLOR") or notebook) and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def report_if_slow(activity: str, seconds: float | None = None) -> Iterator[None]:
    """Print one line if the block takes longer than `seconds`; SILENT_SECONDS if None."""
    timer = threading.Timer(SILENT_SECONDS if seconds is None else seconds, say, (f"{activity} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
