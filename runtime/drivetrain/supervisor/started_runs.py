"""The runs that a container has started, in a file below runs/ that its starter names and reads.

What a container prints cannot say it: data and code of a job can print any line.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from drivetrain.system.run_files import RunFiles, find_links

VARIABLE = "DRIVETRAIN_STARTED_RUNS"
"""In a container: the name of the file in runs/."""
RUNS = Path("runs")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
"""A run folder below runs/, or that of a trial in a sweep."""
MAX_BYTES = 1 << 20
"""Bytes that are read of the file."""


def announce(run: Path) -> None:
    """Tell the starter of this container, if there is one, that a run begins in this folder."""
    name = os.environ.get(VARIABLE)
    if name and run.is_relative_to(RUNS):
        with contextlib.suppress(OSError):  # a full disk, which the run itself reports
            RunFiles(RUNS).append(name, f"{run.relative_to(RUNS)}\n")


class StartedRuns:
    """What a starter knows of the runs of one container.

    Args:
        project: the folder that has runs/.
    """

    def __init__(self, project: Path) -> None:
        self.project = project
        self.files = RunFiles((project / RUNS).resolve())
        self.name = f".started-{secrets.token_hex(8)}"
        self.count = 0

    def variables(self) -> dict[str, str]:
        """Environment variables for the container."""
        return {VARIABLE: self.name}

    def read_new(self) -> Iterator[Path]:
        """The paths of the runs that were started since the last call; what does not name a run folder is left out."""
        try:
            with self.files.open(self.name, errors="replace") as file:
                *lines, _ = file.read(MAX_BYTES).split("\n")
        except OSError:
            return
        names, self.count = lines[self.count :], len(lines)
        for name in names:
            run = self.project / RUNS / name
            if _RUN.fullmatch(name) and not run.parent.is_symlink() and not any(find_links(run)):
                yield run

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            (self.files.path / self.name).unlink()
