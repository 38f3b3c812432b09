"""Tells `drivetrain launch` which runs its container has started, by a file in runs/ that both can access.

The output of the container is not used for this, since data and code of a job can print any line.
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
"""Environment variable of the container with the name of that file."""
RUNS = Path("runs")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
"""Path of a run folder in runs/, or of the run folder of a trial in a sweep."""
MAX_BYTES = 1 << 20
"""Largest number of bytes that are read from the file."""


def announce(run: Path) -> None:
    """Add a run folder to the file, if this process runs in a container that `drivetrain launch` has started."""
    name = os.environ.get(VARIABLE)
    if name and run.is_relative_to(RUNS):
        with contextlib.suppress(OSError):  # a full disk, which the run itself reports
            RunFiles(RUNS).append(name, f"{run.relative_to(RUNS)}\n")


class StartedRuns:
    """The side of `drivetrain launch`: the runs that one container has started.

    Args:
        project: the parent of runs/.
    """

    def __init__(self, project: Path) -> None:
        self.project = project
        self.files = RunFiles((project / RUNS).resolve())
        self.name = f".started-{secrets.token_hex(8)}"
        self.read_count = 0

    def variables(self) -> dict[str, str]:
        """The environment variables that the container needs."""
        return {VARIABLE: self.name}

    def read_new(self) -> Iterator[Path]:
        """Yield the run folders that were added since the last call; lines that do not name a run folder are skipped."""
        try:
            with self.files.open(self.name, errors="replace") as file:
                *lines, _unfinished_line = file.read(MAX_BYTES).split("\n")
        except OSError:
            return
        names, self.read_count = lines[self.read_count :], len(lines)
        for name in names:
            run = self.project / RUNS / name
            if _RUN_NAME.fullmatch(name) and not run.parent.is_symlink() and not any(find_links(run)):
                yield run

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            (self.files.path / self.name).unlink()
