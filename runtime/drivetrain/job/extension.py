"""Reads which finished run the run of a folder extends."""

from __future__ import annotations

from pathlib import Path

from drivetrain.system.run_files import EXTENSION_FILE, RunFiles


def read_name(folder: Path) -> str:
    """Read the name of the run that the run of a folder extends; empty if it began from scratch."""
    return str(RunFiles(folder).read_object(EXTENSION_FILE).get("run") or "")


def describe_unfinished(folder: Path) -> str:
    """Return the beginning of a message about an unfinished run: which run it continues, if it continues one."""
    name = read_name(folder)
    return f"{folder} is unfinished" + (f" and continues {name}" if name else "")
