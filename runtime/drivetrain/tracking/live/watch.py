"""`drivetrain watch RUN`: shows the dashboard of a run from its folder alone until it ends, or once if it has ended."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from drivetrain.job.formatting import format_metric
from drivetrain.system import file_lock
from drivetrain.system.console import is_live_terminal, open_console, say
from drivetrain.system.run_files import JOB_FILE, LOCK_FILE, STATE_FILE, TELEMETRY_FILE, RunFiles
from drivetrain.tracking.live.dashboard import format_line, render
from drivetrain.tracking.live.live_view import LINE_SECONDS, PAINT_SECONDS, Painter
from drivetrain.tracking.live.run_reader import RunReader, RunView

END_STATUSES = ("done", "stopped", "failed", "killed")
QUIET_SECONDS = 5.0
"""Seconds without a change after which the run's lock is checked; the sensors write every second."""


def watch(folder: Path) -> int:
    """Show the run until it ends, or until Ctrl-C, which does not stop the run. Returns 0.

    Raises:
        CheckpointError: if there is no such run.
    """
    reader = RunReader(folder)
    try:
        if is_live_terminal():
            _paint(reader)
        else:
            _print(reader)
    except KeyboardInterrupt:
        pass
    return 0


def show_copied(folder: Path) -> int:
    """Show once the copy of a run elsewhere. Returns 0."""
    view = RunReader(folder).read()
    say(format_line(view))
    say(f"{view.status} at step {view.step} when it was copied last")
    return 0


def _paint(reader: RunReader) -> None:
    painter = Painter(open_console())
    try:
        while True:
            view = read_view(reader)
            painter.paint(partial(render, view))
            if view.status in END_STATUSES:
                return
            time.sleep(PAINT_SECONDS)
    finally:
        painter.restore_streams()


def _print(reader: RunReader) -> None:
    say(f"watching {reader.view.folder}")
    while True:
        view = read_view(reader)
        say(format_line(view))
        if view.status in END_STATUSES:
            best = f", best {view.metric} {format_metric(view.best[0])} after epoch {view.best[1]}" if view.best else ""
            say(f"{view.status} at step {view.step}{best}")
            return
        time.sleep(LINE_SECONDS)


def read_view(reader: RunReader) -> RunView:
    """Read the state; a run whose supervisor was killed could not record its end."""
    view = reader.read()
    # Trying the lock while a run starts could make that fail, so it is tried only if nothing changes.
    if (
        view.status not in END_STATUSES
        and measure_idle(view.folder) > QUIET_SECONDS
        and not file_lock.is_locked(LOCK_FILE, RunFiles(view.folder).open_handle)
    ):
        view.status = "killed"
    return view


def measure_idle(folder: Path) -> float:
    """Seconds since supervisor or sensors last wrote."""
    times = map(RunFiles(folder).read_modified, (JOB_FILE, STATE_FILE, TELEMETRY_FILE))
    return time.time() - max(moment or 0.0 for moment in times)
