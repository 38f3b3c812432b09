"""The event log: unusual events of a run, printed at once and stored in events.jsonl for the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from drivetrain.errors import Failure
from drivetrain.system.console import Detail, say
from drivetrain.system.run_files import EVENTS_FILE, RunFiles


class EventLog:
    """Appends one row per event."""

    def __init__(self, folder: Path) -> None:
        self.files = RunFiles(folder)

    def add(self, kind: str, text: str, step: int | None = None) -> None:
        """Print and store an event; if the disk is full, it is only printed."""
        line = f"{kind}: {text}"
        say(Detail(line) if isinstance(text, Detail) else line)
        self.store(kind, text, step)

    def store(self, kind: str, text: str, step: int | None = None) -> None:
        """Store an event that was printed already."""
        row = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "kind": kind, "text": text}
        try:
            self.files.append(EVENTS_FILE, json.dumps(row) + "\n")
        except OSError as error:
            say(f"{kind}: not kept in {EVENTS_FILE}: {error.strerror}")


class OutageLog:
    """Events about a server that a run is copied to: each new problem once, and its end."""

    def __init__(self, events: EventLog, kind: str, address: object) -> None:
        self.events, self.kind, self.address = events, kind, address
        self.problem = ""
        """Why the last attempt failed; empty if it did not."""

    def note_attempt(self, error: Failure | OSError | None) -> None:
        """Report the error of an attempt, or None for success, if that is news."""
        if error is None:
            problem = ""
        elif isinstance(error, Failure):
            problem = error.given
        else:
            problem = f"{error.filename}: {error.strerror}"
        if problem and problem != self.problem:
            self.events.add(self.kind, f"{problem}; training goes on, and what is missing is sent later")
            if isinstance(error, Failure) and error.action:
                say(f"  do:       {error.action}")
        elif self.problem and not problem:
            self.events.add(self.kind, f"{self.address} answers again; everything so far is there")
        self.problem = problem
