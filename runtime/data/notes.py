"""A note about the data as a line of the log."""

from __future__ import annotations


def line(note: str) -> str:
    """The note after `data:`, unless it starts with a key such as data.train already."""
    return note if note.startswith("data.") else f"data: {note}"
