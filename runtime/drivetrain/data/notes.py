"""Formats notes on the data or the model as lines of the log, and the names in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.system.console import Detail
from drivetrain.system.printable import printable


def format_note(note: str, part: str = "data") -> str:
    """Put `data:` (or another part of the job) before a note, unless it starts with that word or one of its keys."""
    text = note if note.startswith((f"{part}.", f"{part}: ")) else f"{part}: {note}"
    return Detail(text) if isinstance(note, Detail) else text


def list_names(names: Sequence[str], max_listed: int = 10, separator: str = ", ") -> str:
    """List the first names and the number of the others: `a, b, c and 7 more`."""
    remainder = f" and {len(names) - max_listed:,} more" if len(names) > max_listed else ""
    return separator.join(map(printable, names[:max_listed])) + remainder


def list_counts(counts: Mapping[str, int], max_listed: int = 20) -> str:
    """List classes with their numbers of samples, the largest first: `ok: 157, broken: 3`."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return list_names([f"{name}: {counts[name]:,}" for name in names], max_listed)
