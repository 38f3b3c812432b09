"""What a tracking server must offer: four methods. Another kind of server is one file in `servers`; see
docs/adding-a-tracker.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from drivetrain.errors import Failure


class TrackerError(Failure):
    """A tracking server refused something, or gave no answer."""

    exit_code = 7

    def __init__(self, description: str, possible: str = "", action: str = "", *, passing: bool) -> None:
        """
        Args:
            description: what was sent, and what came back.
            possible: what the server accepts.
            action: what to do about it.
            passing: whether the same request may succeed later.
        """
        super().__init__(description, possible, action)
        self.passing = passing


@dataclass(frozen=True)
class Row:
    """The metrics of one step."""

    step: int
    milliseconds: int
    """Since 1970; the same whenever the row is sent again."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class RunDescription:
    """What a server shows beside the curves."""

    name: str
    started: int
    """Milliseconds since 1970."""
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """A run on a tracking server. Every method may be called again after it failed, and then doubles nothing."""

    most: int
    """Numbers that one call of `log` should have."""

    def begin(self, run: RunDescription) -> str:
        """Create the run, or find the one that was created before; returns the address of its page.

        Raises:
            TrackerError: as all methods.
        """

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics of some steps."""

    def describe(self, tags: Mapping[str, str]) -> None:
        """Replace some tags."""

    def end(self, status: str, ended: int | None, files: Mapping[str, bytes]) -> str:
        """Send files, by their path on the server, and the status: running, done, stopped or failed.

        Returns what was not sent, and why; empty if everything was.
        """
