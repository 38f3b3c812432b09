"""Fingerprint: whether files are what they were: by what the file system says of them, else by their bytes.

A file whose size, times and inode are the same has not been written since; any other is read, and its SHA-256 decides.
So touching or copying a file changes nothing, and a file that took the place of another is found out whatever its size
and its time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from runtime.system.files import sha256

GONE = "missing"
Rows = dict[str, str]
"""By name: stamp and SHA-256, or `missing`."""


def stamp(path: str | Path) -> str:
    """What the file system says of a file: size, time of the content, time of the inode, inode; empty if there is none.

    No program can set the time of the inode, so a file with the same stamp has the same bytes.
    """
    try:
        found = os.stat(path)
    except OSError:
        return ""
    # Opening a pipe would wait forever.
    return (
        ""
        if not stat.S_ISREG(found.st_mode)
        else f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
    )


def of(base: Path, names: Iterable[str]) -> Rows:
    """The rows of files, whose names are relative to `base` or absolute."""
    return {name: _row(os.path.join(base, name)) for name in names}


def changed(base: Path, rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The name of each file that is another by now, and what has happened to it."""
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
    except OSError:  # it may not be read, which the data says where it is used
        return GONE
