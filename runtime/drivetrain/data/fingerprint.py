"""Detects changed files, by their metadata first and by their content if the metadata differs.

A file with the same size, times and inode has not been written since. Any other file is read, and its SHA-256 decides.
So touching or copying a file is no change, and a replaced file is found whatever its size and time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from drivetrain.system.files import sha256

GONE = "missing"
Rows = dict[str, str]
"""By file name: stamp and SHA-256, or `missing`."""


def stamp(path: str | Path) -> str:
    """Metadata of a file: size, mtime, ctime and inode number; empty if there is no file.

    No program can set the ctime, so a file with the same stamp has the same content.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    # Opening a pipe would block for ever.
    return (
        ""
        if not stat.S_ISREG(status.st_mode)
        else f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    )


def of(base: Path, names: Iterable[str]) -> Rows:
    """The stamps and digests of files, whose names are relative to `base` or absolute."""
    return {name: _row(os.path.join(base, name)) for name in names}


def list_changed(base: Path, rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The name of each changed file, and what has changed."""
    for name, row in rows.items():
        path = os.path.join(base, name)
        before, _, digest = row.rpartition(" ")
        if before and before == stamp(path):
            continue
        now = _row(path)
        if now.rpartition(" ")[2] != digest:
            yield (
                name,
                "is not there any more" if now == GONE else "was not there" if row == GONE else "has other content",
            )


def _row(path: str) -> str:
    before = stamp(path)
    try:
        return f"{before} {sha256(Path(path))}" if before else GONE
    except OSError:  # an unreadable file is reported where the data is loaded
        return GONE
