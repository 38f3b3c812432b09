"""Detects changed files, by their metadata first and by their content if the metadata differs.

A file with the same size, times and inode has not been written since. Any other file is read, and its SHA-256 decides.
So touching or copying a file is no change, and a replaced file is detected whatever its size and time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from drivetrain.system.files import hash_file

GONE = "missing"
"""Fingerprint of a missing file."""
Fingerprints = dict[str, str]
"""Stamp and SHA-256 of each file, or `missing`, by file name."""


def stamp(path: str | Path) -> str:
    """Return metadata of a file: size, mtime, ctime and inode number; empty if there is no file.

    No program can set the ctime, so a file with the same stamp has the same content.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode):
        return ""  # reading a pipe would block forever
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def fingerprint_files(base: Path, names: Iterable[str]) -> Fingerprints:
    """Return the fingerprint of each file; names are absolute or relative to `base`."""
    return {name: _fingerprint_file(os.path.join(base, name)) for name in names}


def list_changed(base: Path, recorded: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each file whose fingerprint differs from the recorded fingerprint, and a description of the change."""
    for name, fingerprint in recorded.items():
        path = os.path.join(base, name)
        recorded_stamp, _, digest = fingerprint.rpartition(" ")
        if recorded_stamp and recorded_stamp == stamp(path):
            continue
        current = _fingerprint_file(path)
        if current == GONE != fingerprint:
            yield name, "was deleted"
        elif current.rpartition(" ")[2] != digest:
            yield name, "was added" if fingerprint == GONE else "was changed"


def _fingerprint_file(path: str) -> str:
    file_stamp = stamp(path)
    try:
        return f"{file_stamp} {hash_file(Path(path))}" if file_stamp else GONE
    except OSError:  # an unreadable file is reported when the data is loaded
        return GONE
