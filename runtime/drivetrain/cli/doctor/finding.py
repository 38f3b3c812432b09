"""A finding of the doctor: what was checked, the result, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from drivetrain.cli.doctor.snapshot import Snapshot


class Level(StrEnum):
    """Severity."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


EXIT = {Level.OK: 0, Level.WARN: 0, Level.FAIL: 9}
"""Exit code by the worst finding: a warning prevents nothing; 9 is also the code of a device that cannot be used."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor."""

    name: str
    level: Level
    text: str
    fix: str = ""
    """The command to type or the setting to change; empty if nothing is wrong."""


Check = Callable[[Snapshot], Iterable[Finding]]


def ok(name: str, text: str) -> Finding:
    """Return a passed check."""
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, fix: str) -> Finding:
    """Return a check of something that works, but slower or riskier than it could."""
    return Finding(name, Level.WARN, text, fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """Return a failed check."""
    return Finding(name, Level.FAIL, text, fix)


def find_worst_level(findings: list[Finding]) -> Level:
    """Find the worst level."""
    return max((f.level for f in findings), key=list(Level).index, default=Level.OK)
