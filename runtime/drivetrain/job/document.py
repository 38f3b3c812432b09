"""A spec as plain values, with the position of every key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drivetrain.errors import Problem
from drivetrain.job.formatting import Path


@dataclass
class Document:
    """Plain values, and the position of every key and item."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """Problems found while reading; all other values are valid."""
    replaced: list[str] = field(default_factory=list)
    """Values that the command line has replaced, in lines for the user."""
    unread: list[Path] = field(default_factory=list)
    """Paths of values that could not be read, and are None."""

    def place(self, path: Path) -> str:
        """Return `file:line:column` of a path, or of its nearest ancestor in the file."""
        return self.places.get(self.nearest(path), f"{self.name}:1:1")

    def nearest(self, path: Path) -> Path:
        """Return a path, or its nearest ancestor that exists in the document."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def has(self, path: Path) -> bool:
        """Return whether `path` exists in the document."""
        return path in self.places
