"""A note about the data or the model as a line of the log."""

from __future__ import annotations


class Detail(str):
    """A note that the log has only if details are asked for; the report has it always."""


def line(note: str, part: str = "data") -> str:
    """The note after `data:` (or another part of the job), unless it starts with that word or one of its keys."""
    return note if note.startswith((f"{part}.", f"{part}: ")) else f"{part}: {note}"
