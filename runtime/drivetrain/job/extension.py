"""The record of a run that extends a finished one, in its folder: which run, and from where on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain.system.run_files import EXTENSION_FILE, RunFiles


@dataclass(frozen=True)
class Extension:
    """A run that extends a finished one."""

    run: str
    """Name of the finished run's folder."""
    step: int
    """Optimizer steps that were trained in it."""
    epoch: int
    """Epochs that were trained in it."""


def write(folder: Path, extension: Extension) -> None:
    """Write the record; raises StorageError if that fails."""
    RunFiles(folder).write_json(EXTENSION_FILE, asdict(extension))


def read_name(folder: Path) -> str:
    """Read the name of the run that the run of a folder extends; empty if it began from scratch."""
    return str(RunFiles(folder).read_object(EXTENSION_FILE).get("run") or "")


def describe_unfinished(folder: Path) -> str:
    """Return the beginning of a message about an unfinished run: which run it continues, if it continues one."""
    name = read_name(folder)
    return f"{folder} is unfinished" + (f" and continues {name}" if name else "")
