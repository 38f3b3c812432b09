"""The files of a run folder that are copied as they are, and what the names and states of its checkpoints say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from drivetrain.system.files import parse_json

CHECKPOINTS = "checkpoints"
STATE = "state.json"
OWNER, OLD_LOCK, RECORD = "owner.json", "writer.json", "copy.json"
"""Of the copy: who writes it, the same by earlier versions; of the run folder: which starts of it wrote the copy."""
LEFT_OUT = (CHECKPOINTS, "ranks", OWNER, OLD_LOCK, RECORD)
"""Of a run folder or a copy: brought in another way, of no use elsewhere, or about this place alone."""
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")


def small_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of the files of the folder that are copied as they are, without the state."""
    for folder, folders, names in os.walk(run):
        relative = Path(folder).relative_to(run)
        folders[:] = sorted(name for name in folders if is_small((relative / name).as_posix()))
        for name in sorted(names):
            path, copied_name = Path(folder) / name, (relative / name).as_posix()
            if is_small(copied_name) and copied_name != STATE and not path.is_symlink() and path.is_file():
                yield copied_name, path


def is_small(name: str) -> bool:
    """Whether a name is that of a file of the run folder itself, which is copied as it is."""
    return is_portable(name) and name.split("/")[0] not in LEFT_OUT


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


def step_of(path: Path | str) -> int:
    """The step of a checkpoint, by its name."""
    return int(str(path).rpartition("-")[2])


def parse_best(state: bytes) -> str | None:
    """The name of the best checkpoint to which the state of a checkpoint refers."""
    try:
        best = parse_json(state)["watch"]["best"]
        return f"best-{int(best['step'])}" if best["best"] is not None else None
    except (ValueError, LookupError, TypeError):
        return None
