"""The record of a run that continues a finished one, in its folder: which run, from which step, and its schedule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain.errors import CheckpointError
from drivetrain.system.run_files import EXTENSION_FILE, MISSING, RunFiles


@dataclass(frozen=True)
class Extension:
    """A run that continues a finished one."""

    run: str
    """Name of the finished run's folder."""
    step: int
    """Optimizer steps that were trained in it."""
    epoch: int
    """Epochs that were trained in it."""
    schedule: str
    """`continues`, or `restarts` at this step."""
    origin: int
    """The step from which the schedule counts: 0, or that of the last restart."""


def read(folder: Path) -> Extension | None:
    """The record of a run folder; None if the run began from scratch.

    Raises:
        CheckpointError: if the record is damaged. Without it the schedule would count from the wrong step.
    """
    document, problem = RunFiles(folder).read_checked_object(EXTENSION_FILE)
    if problem == MISSING:
        return None
    kinds = {"run": str, "step": int, "epoch": int, "schedule": str, "origin": int}
    if problem or {key: type(document.get(key)) for key in kinds} != kinds:
        raise CheckpointError(
            f"{folder / EXTENSION_FILE}: {problem or 'a value is missing or of another type'}",
            "the file as --extend wrote it",
            "restore it, or extend the finished run again with --new",
        )
    return Extension(**{key: document[key] for key in kinds})


def write(folder: Path, extension: Extension) -> None:
    """Write the record; raises StorageError if that fails."""
    RunFiles(folder).write_json(EXTENSION_FILE, asdict(extension))


def describe_unfinished(folder: Path) -> str:
    """The beginning of a message about an unfinished run: which run it continues, if it continues one."""
    extension = read(folder)
    return f"{folder} continues {extension.run}" if extension else f"{folder} is unfinished"
