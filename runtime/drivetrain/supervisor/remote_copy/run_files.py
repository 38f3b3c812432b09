"""The files of a run folder that are copied as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from drivetrain.supervisor.remote_copy.writer_lock import FILE as LOCK_FILE

CHECKPOINTS = "checkpoints"
STATE = "state.json"
LEFT_OUT = (CHECKPOINTS, "ranks", LOCK_FILE)
"""Of a run folder: copied in another way, of no use elsewhere, or not ours."""
LARGE_FILE_BYTES = 64 << 20
"""Bytes from which a file is not read as a whole."""
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")


def small_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of the files of the folder that are copied as they are, without the state."""
    for folder, folders, names in os.walk(run):
        relative = Path(folder).relative_to(run)
        out = LEFT_OUT if relative == Path() else ()
        folders[:] = sorted(name for name in folders if is_portable(name) and name not in out)
        for name in sorted(names):
            path = Path(folder) / name
            is_copied = is_portable(name) and name not in out and (relative / name) != Path(STATE)
            if is_copied and not path.is_symlink() and path.is_file():
                yield (relative / name).as_posix(), path


def is_portable(name: str) -> bool:
    """Whether a name may be written to a store, or be taken from one: none is hidden, none leads out of the folder."""
    return all(_PART.fullmatch(part) for part in name.split("/"))


def is_gone(path: Path) -> bool:
    """Whether a file is missing for sure; one that cannot be looked at is not."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Changes with the content of a file; None if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
