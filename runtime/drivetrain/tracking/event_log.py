"""The event log: what happened to a run beside its steps, printed at once and kept in events.jsonl for the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from drivetrain.system.console import say
from drivetrain.system.run_files import EVENTS_FILE, RunFiles


class EventLog:
    """Appends one row per event."""

    def __init__(self, folder: Path) -> None:
        self.files = RunFiles(folder)

    def add(self, kind: str, text: str, step: int | None = None) -> None:
        """Print and store an event; if the disk is full, it is only printed."""
        say(f"{kind}: {text}")
        self.store(kind, text, step)

    def store(self, kind: str, text: str, step: int | None = None) -> None:
        """Store an event that was printed already."""
        row = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "kind": kind, "text": text}
        try:
            self.files.append(EVENTS_FILE, json.dumps(row) + "\n")
        except OSError as error:
            say(f"{kind}: not kept in {EVENTS_FILE}: {error.strerror}")
