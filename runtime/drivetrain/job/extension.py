"""Reads the name of the finished run that a run extends, and whether the extension has begun to train."""

from __future__ import annotations

from pathlib import Path

from drivetrain.system import run_files
from drivetrain.system.run_files import EXTENSION_FILE, RunFiles


def read_name(folder: Path) -> str:
    """Read the name of the run that a run extends; empty if it began from scratch."""
    return str(RunFiles(folder).read_object(EXTENSION_FILE).get("run") or "")


def is_untouched(folder: Path) -> bool:
    """Return whether a folder is a copy of a finished run that has not trained yet, for example because it was refused."""
    record = RunFiles(folder).read_object(EXTENSION_FILE)
    checkpoints = run_files.list_checkpoints(folder / run_files.CHECKPOINTS)
    return bool(record) and (not checkpoints or run_files.parse_suffix(checkpoints[-1]) == record.get("step"))


def describe_unfinished(folder: Path) -> str:
    """Return the beginning of a message about an unfinished run, with the run that it continues, if any."""
    name = read_name(folder)
    return f"{folder} is unfinished" + (f" and continues {name}" if name else "")
