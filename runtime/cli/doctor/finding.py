"""Finding: one line of the doctor: what was looked at, how it is, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from runtime.cli.doctor.snapshot import Snapshot


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


EXIT = {Level.OK: 0, Level.WARN: 1, Level.FAIL: 9}
"""The exit code by the worst finding; 9 is also that of a device that cannot be used."""


@dataclass(frozen=True)
class Finding:
    """One line."""

    name: str
    level: Level
    text: str
    mend: str = ""
    """What to type or to change; empty where nothing needs to be done."""


Check = Callable[[Snapshot], Iterator[Finding]]


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, mend: str) -> Finding:
    """It works, but slower or riskier than it could."""
    return Finding(name, Level.WARN, text, mend)


def fail(name: str, text: str, mend: str) -> Finding:
    """Something cannot work."""
    return Finding(name, Level.FAIL, text, mend)


def worst(findings: list[Finding]) -> Level:
    """The worst level."""
    return max((f.level for f in findings), key=list(Level).index, default=Level.OK)
