"""Rows of a benchmark in a file of lines of JSON: each is there as soon as it is measured, so one that is ended goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RowsFile:
    """The rows of one kind of machine; those of others may be in the same file."""

    def __init__(self, path: Path, machine: Mapping[str, Any]) -> None:
        self.path, self.machine = path, machine
        self.measured = {row["row"] for row in self.read() if "failed" not in row}
        """Names of the rows that need not be measured again."""

    def read(self) -> list[dict[str, Any]]:
        """The rows of this kind of machine; a line that was cut off by the end of one is left out."""
        rows = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        return [row for row in rows if all(row.get(key) == value for key, value in self.machine.items())]

    def append(self, name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Add a row that survives the end of this machine; returns it."""
        row = {"row": name, **self.machine, **figures}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return row
