"""The live view: a thread that paints a run from its folder during the training, at a limited rate; `drivetrain watch`.

The picture stays at the bottom of the terminal; text printed by the run appears above it.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

from drivetrain.job.formatting import format_metric
from drivetrain.system import file_lock
from drivetrain.system.console import is_live_terminal, open_console, say
from drivetrain.system.run_files import JOB_FILE, LOCK_FILE, STATE_FILE, TELEMETRY_FILE, RunFiles
from drivetrain.tracking.live.dashboard import format_line, render
from drivetrain.tracking.live.run_reader import RunReader, RunView

LINE_SECONDS = 5.0
"""Seconds between two lines."""
PAINT_SECONDS = 1.0
"""Seconds between two refreshes, the interval at which sensors are read."""
PAINT_SHARE, MAX_PAINT_SECONDS = 0.005, 10.0
"""Largest share of a CPU that painting may use, and the longest interval in seconds that follows from it."""
Picture = Callable[[int], RenderableType]
"""Makes the picture for the given number of columns."""


class LiveView:
    """A thread that reads a run folder and paints it until closed."""

    def __init__(self, folder: Path) -> None:
        self.reader, self.painter = RunReader(folder), Painter(open_console())
        self.cpu_seconds = 0.0
        """CPU seconds of the painting thread so far."""
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._paint_until_closed, name="live view", daemon=True)
        self.painter.start()
        self.thread.start()

    def _paint_until_closed(self) -> None:
        try:
            wait_seconds = PAINT_SECONDS
            while not self.stop.wait(wait_seconds):
                cpu_seconds = self.cpu_seconds
                self._paint()
                wait_seconds = choose_pause(self.cpu_seconds - cpu_seconds)
            self._paint()
        except Exception as error:
            # A failing view must not end the run, which continues with plain lines.
            say(f"the live view has stopped: {error}")

    def _paint(self) -> None:
        self.painter.paint(partial(render, self.reader.read()))
        self.cpu_seconds = time.thread_time()

    def close(self) -> None:
        """Show the last state, and restore the streams."""
        self.stop.set()
        self.thread.join()
        self.painter.restore_streams()


def choose_pause(cost: float) -> float:
    """Return the seconds until the next refresh, by the CPU seconds of the last: a busy machine gets fewer."""
    return min(MAX_PAINT_SECONDS, max(PAINT_SECONDS, cost / PAINT_SHARE))


class Painter:
    """Repaints its last picture. The cursor stays visible, so that a killed process does not leave it hidden."""

    def __init__(self, console: Console) -> None:
        self.console, self.lines, self.size = console, 0, console.size
        self.captured = _CapturedStream()
        self.lock = threading.Lock()
        self.streams: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Take over stdout and stderr."""
        self.streams = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = cast(TextIO, self.captured)

    def restore_streams(self) -> None:
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
        """Replace the last picture by the text printed since and `text`, in a single write."""
        size = self.console.size
        if self.lines and size.width < self.size.width:
            # A narrower terminal has rewrapped the lines in an unknown way: clear the screen.
            erase_codes = "\x1b[2J\x1b[H"
        else:
            erase_codes = f"\x1b[{self.lines}F\x1b[J" if self.lines else ""
        self.size, self.lines = size, 0
        self.console.file.write(erase_codes + self.captured.read_lines() + text)
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

    def read_lines(self) -> str:
        """Read all text since the last call, completed to whole lines."""
        count = len(self.text)
        said = "".join(self.text[:count])
        del self.text[:count]
        return said if not said or said.endswith("\n") else said + "\n"


END_STATUSES = ("done", "stopped", "failed", "killed")
QUIET_SECONDS = 5.0
"""Seconds without a change after which the run's lock is checked; the sensors write every second."""


def watch(folder: Path) -> int:
    """Show a run from its folder alone until it ends, or until Ctrl-C, which does not stop the run. Returns 0.

    Raises:
        CheckpointError: if there is no such run.
    """
    reader = RunReader(folder)
    painter = Painter(open_console()) if is_live_terminal() else None
    if not painter:
        say(f"watching {folder}")
    try:
        while True:
            view = read_view(reader)
            if painter:
                painter.paint(partial(render, view))
            else:
                say(format_line(view))
            if view.status in END_STATUSES:
                break
            time.sleep(PAINT_SECONDS if painter else LINE_SECONDS)
        if not painter:
            best = (
                f", best {view.score_name} {format_metric(view.best[0])} after epoch {view.best[1]}"
                if view.best
                else ""
            )
            say(f"{view.status} at step {view.step}{best}")
    except KeyboardInterrupt:
        pass
    finally:
        if painter:
            painter.restore_streams()
    return 0


def read_view(reader: RunReader) -> RunView:
    """Read the state; a run whose supervisor was killed could not record its end."""
    view = reader.read()
    times = map(RunFiles(view.folder).read_modified, (JOB_FILE, STATE_FILE, TELEMETRY_FILE))
    idle_seconds = time.time() - max(moment or 0.0 for moment in times)
    # Trying the lock while a run starts could make that fail, so it is tried only if nothing changes.
    if (
        view.status not in END_STATUSES
        and idle_seconds > QUIET_SECONDS
        and not file_lock.is_locked(LOCK_FILE, RunFiles(view.folder).open_handle)
    ):
        view.status = "killed"
    return view
