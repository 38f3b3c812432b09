"""The files of a run folder that are copied as they are, and what the names and states of its checkpoints say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.system.run_files import CHECKPOINTS, COPY_FILE, RANKS, STATE_FILE
from drivetrain.training.checkpoints.manifest import find_best_step

OWNER, OLD_LOCK = "owner.json", "writer.json"
"""Of the copy: who writes it, and the same by earlier versions."""
LEFT_OUT = (CHECKPOINTS, RANKS, OWNER, OLD_LOCK, COPY_FILE)
"""Of a run folder or a copy: brought in another way, of no use elsewhere, or about this place alone."""
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")


def small_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of the files of the folder that are copied as they are, without the state."""
    for folder, folders, names in os.walk(run):
        relative = Path(folder).relative_to(run)
        folders[:] = sorted(name for name in folders if is_small((relative / name).as_posix()))
        for name in sorted(names):
            path, copied_name = Path(folder) / name, (relative / name).as_posix()
            if is_small(copied_name) and copied_name != STATE_FILE and not path.is_symlink() and path.is_file():
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


def name_best(state: Mapping[str, Any]) -> str | None:
    """The name of the best checkpoint to which the state of a checkpoint refers."""
    step = find_best_step(state)
    return None if step is None else f"best-{step}"
