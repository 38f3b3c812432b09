"""Passes the error that ended a trainer to the command that started it, if the command prints JSON."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.system.files import read_json, write_json

ERROR_FILE_VARIABLE = "DRIVETRAIN_ERROR_FILE"
"""Environment variable with the file for the error; without it the error is not stored."""


def store_error(error: DrivetrainError) -> None:
    """Write the error to the file named in the environment, if there is one."""
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if path:
        with contextlib.suppress(OSError, DrivetrainError):  # stderr has the error too
            write_json(Path(path), error.to_json())


def read_error(path: Path) -> dict[str, Any]:
    """Read the error as JSON; empty if no trainer has written one."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}
