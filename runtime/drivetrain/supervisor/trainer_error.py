"""Hands the error that ended a trainer to the command that started it, if that prints JSON."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.system.files import read_json, write_json

ERROR_FILE = "DRIVETRAIN_ERROR_FILE"
"""Variable: the file that gets the error; without it nobody asks."""


def store_error(error: DrivetrainError) -> None:
    """Write the error to the file that the environment names, if it names one."""
    if path := os.environ.get(ERROR_FILE):
        with contextlib.suppress(OSError, DrivetrainError):  # stderr has it, too
            write_json(Path(path), error.to_json())


def read_error(path: Path) -> dict[str, Any]:
    """Read the error in JSON; empty if no trainer wrote one."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}
