"""The exception tree and its exit codes.

    DrivetrainError            the root; never raised itself. All but Stopped are Failures, and so Exceptions
    ├── UserCodeError     1    a callback or a metric of a Python program raised
    ├── SpecError         2    the job spec (or a command line value) is invalid
    ├── DataError         3    the data cannot be used
    ├── CheckpointError   4    no acceptable checkpoint or run folder
    ├── NumericsError     5    the budget for non-finite steps is spent
    ├── OutOfMemory       6    memory is short at micro-batch 1
    ├── StorageError      7    a folder cannot be written
    ├── PeerError         8    another process is lost or hung
    ├── DeviceError       9    the device cannot be used: wrong image, lost GPU, no engine, kernels that crash
    ├── Replanned        10    a new plan needs another process, which the supervisor starts; not visible outside
    ├── Busy             11    another process is training this run
    ├── RestartSmaller   12    memory ran out in one of several processes; the supervisor starts all again with smaller
    │                          micro-batches; not visible outside
    └── Stopped          75    stopped early, no saved progress was lost; the same command resumes the run

Every message has three parts: what was given, what is possible here, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class DrivetrainError(BaseException):
    """A failure that the user can act on.

    Args:
        given: what was given or found, with its key or path.
        possible: what is allowed or possible here.
        action: what to do about it.
    """

    exit_code = 1

    def __init__(self, description: str, possible: str = "", action: str = "") -> None:
        self.given, self.possible, self.action = description, possible, action
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the message, one line per part, without empty parts."""
        labels = (("", self.given), ("  possible: ", self.possible), ("  do:       ", self.action))
        return [label + text for label, text in labels if text]

    def to_json(self) -> dict[str, Any]:
        """Return the exit code and the parts, for another program."""
        parts = {"given": self.given, "possible": self.possible, "action": self.action}
        return {"exit_code": self.exit_code, "error": parts}


class Failure(DrivetrainError, Exception):
    """Every error but `Stopped`, with which a program's `except Exception` must not go on."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a spec: where (`file:line:column`), which key, and the three parts."""

    place: str
    key: str
    given: str
    possible: str
    action: str

    def lines(self) -> list[str]:
        """Return the problem as shown to the user."""
        head = f"{self.place}: {self.key}: {self.given}" if self.key else f"{self.place}: {self.given}"
        return DrivetrainError(head, self.possible, self.action).lines()


class SpecError(Failure):
    """The spec is invalid."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem] | Problem | str, possible: str = "", action: str = "") -> None:
        self.problems: list[Problem] = []
        if isinstance(problems, str):
            super().__init__(problems, possible, action)
            return
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(line for problem in self.problems for line in problem.lines()))

    def lines(self) -> list[str]:
        """Return the message, one line per part of every problem."""
        return [line for problem in self.problems for line in problem.lines()] or super().lines()

    def to_json(self) -> dict[str, Any]:
        """As of every error, that of the first problem, and each problem with its place."""
        problems = [asdict(problem) for problem in self.problems]
        first = {"error": {part: problems[0][part] for part in ("given", "possible", "action")}} if problems else {}
        return super().to_json() | first | {"problems": problems}


class UserCodeError(Failure):
    """A callback or a metric of a Python program raised."""


class DataError(Failure):
    """The data cannot be used.

    Args:
        description: what was given or found, without its key.
        key: spec key of the data, with dots; empty if no key names them.
    """

    exit_code = 3

    def __init__(self, description: str, possible: str = "", action: str = "", *, key: str = "") -> None:
        super().__init__(f"{key}: {description}" if key else description, possible, action)
        self.description, self.key = description, key


class CheckpointError(Failure):
    """No acceptable checkpoint or run folder."""

    exit_code = 4


class NumericsError(Failure):
    """The budget for non-finite steps is spent."""

    exit_code = 5


class OutOfMemory(Failure):
    """Memory is short even at micro-batch 1."""

    exit_code = 6


class StorageError(Failure):
    """A folder cannot be written."""

    exit_code = 7


class PeerError(Failure):
    """Another process is lost or hung."""

    exit_code = 8


class DeviceError(Failure):
    """The device cannot be used: wrong image, lost GPU, no engine, kernels that crash."""

    exit_code = 9


class Replanned(Failure):
    """Measuring has changed what is fixed when a process starts, or was broken off; the supervisor starts another."""

    exit_code = 10


class Busy(Failure):
    """Another process is training this run."""

    exit_code = 11


class RestartSmaller(Failure):
    """Memory ran out in one of several processes; all must start again, with smaller micro-batches."""

    exit_code = 12


class Stopped(DrivetrainError):
    """Stopped early by a signal or a time limit; the same command resumes the run.

    Like KeyboardInterrupt it is no Exception: a loop over trainings that passes over failures ends with it.
    """

    exit_code = 75


def nearest(word: str, candidates: Iterable[str], likeness: float = 0.5) -> str:
    """`did you mean "x"?` for the closest of `candidates`, or an empty string if none is alike, from 0 to 1."""
    candidates = list(candidates)
    # Two letters in the wrong order are the likeliest slip, and count as two differences elsewhere.
    swapped = [other for other in candidates if sorted(other) == sorted(word)]
    close = swapped[:1] or difflib.get_close_matches(word, candidates, n=1, cutoff=likeness)
    # Words may be names of data, such as columns and classes.
    letters = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in "".join(close)
    )
    printable = "".join(letters)
    return f'did you mean "{printable}"?' if close else ""
