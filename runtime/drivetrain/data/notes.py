"""A note about the data or the model as a line of the log."""

from __future__ import annotations

from drivetrain.system.console import Detail


def format_note(note: str, part: str = "data") -> str:
    """The note after `data:` (or another part of the job), unless it starts with that word or one of its keys."""
    text = note if note.startswith((f"{part}.", f"{part}: ")) else f"{part}: {note}"
    return Detail(text) if isinstance(note, Detail) else text
