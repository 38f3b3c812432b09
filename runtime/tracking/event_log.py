"""The event log: what happened to a run beside its steps, printed at once and kept in events.jsonl for the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path


class EventLog:
    """Appends one row per event."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    def add(self, kind: str, text: str, step: int | None = None) -> None:
        """Print and store an event; if the disk is full, it is only printed."""
        print(f"{kind}: {text}", flush=True)
        self.keep(kind, text, step)

    def keep(self, kind: str, text: str, step: int | None = None) -> None:
        """Store an event that was printed already."""
        row = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "kind": kind, "text": text}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            print(f"{kind}: not kept in {self.path.name}: {error.strerror}", flush=True)
