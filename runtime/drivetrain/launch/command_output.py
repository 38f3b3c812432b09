"""Lets a command in a container write its output, and nothing else that lies next to it.

Code of a job runs there. If the folder of `--output answers.csv` were writable, that code could change files that the host runs
next: the project's code, its Makefile, the hooks of git.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drivetrain.errors import SpecError, StorageError
from drivetrain.launch.mounts import Mount, check_one_line, find_obstacle
from drivetrain.launch.project import PROJECT, RUNS
from drivetrain.system.files import blame_storage
from drivetrain.system.installation import INSTALL_TORCH

"""The one folder of the project that every container may write to."""
MAX_ENTRIES = 500
"""Largest number of entries of a project's folder; each becomes a mount."""


def make_runs_folder() -> None:
    """Create the folder of the runs, which containers write to.

    Raises:
        SpecError: if it is a link to a folder that a container should not be able to change.
        StorageError: if it cannot be created.
    """
    folder = RUNS.resolve()
    obstacle = "it contains the project" if PROJECT.is_relative_to(folder) else find_obstacle(folder)
    if obstacle and RUNS.is_symlink():
        raise SpecError(
            f"{RUNS} is a link: a container would have to write to {folder}, and {obstacle}",
            "a folder with only runs in it",
            "remove the link, or call the command in another folder",
        )
    try:
        RUNS.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{RUNS}: {error.strerror}",
            "a folder that this user can write to",
            "call the command in such a folder: it writes to runs/ there",
        ) from None


@contextmanager
def open_output(paths: Sequence[Path], uid: int, mounts: Sequence[Mount]) -> Iterator[list[Mount]]:
    """Yield the mounts of a container that may also write to these paths; then move its output there.

    An existing folder is mounted. Otherwise an empty folder stands in for the folder around the new file or folder.

    Args:
        paths: the files or folders that the command writes, in the same folder.
        uid: the user of the container.
        mounts: everything else that the container sees.

    Raises:
        SpecError: if that folder contains more than a container should be able to change.
        StorageError: if it cannot be written.
    """
    path = Path(os.path.abspath(paths[0])) if paths else RUNS
    if path.is_relative_to(RUNS):
        yield list(mounts)
        return
    folder = path if path.is_dir() else next(parent for parent in path.parents if parent.exists())
    _check_folder(folder, path)
    if folder == path:
        _check_writable(folder, uid)
        yield [*(mount for mount in mounts if mount.target != folder), Mount(folder.resolve(), folder, writable=True)]
        return
    names = [Path(os.path.abspath(path)).relative_to(folder).parts[0] for path in paths]
    with blame_storage(path):
        stand_in = Path(tempfile.mkdtemp(prefix=".drivetrain-output-", dir=folder))
    try:
        if os.getuid() == 0:
            os.chown(stand_in, uid, -1)
        for name in names:
            if (folder / name).exists():  # for commands that never overwrite a file
                (stand_in / name).touch(mode=0o666)
        other_mounts = [mount for mount in mounts if mount.target != folder]
        if any(folder.is_relative_to(mount.target) for mount in mounts):  # keep visible files visible
            other_mounts += _list_neighbors(folder, stand_in, names, other_mounts)
        for mount in other_mounts:
            _make_place(mount, folder, stand_in)
        yield [*other_mounts, Mount(stand_in, folder, writable=True)]
    finally:
        for name in names:
            written = stand_in / name
            # No command writes a link, or an empty file; code that does gets nothing moved.
            if not written.is_symlink() and (written.is_dir() or (written.is_file() and written.stat().st_size)):
                os.replace(written, folder / name)
        shutil.rmtree(stand_in, ignore_errors=True)


def _check_folder(folder: Path, path: Path) -> None:
    for checked in (path, folder.resolve()):
        check_one_line({"the output": checked})
    obstacle = find_obstacle(folder) or find_obstacle(folder.resolve())
    if folder == path and PROJECT.is_relative_to(folder.resolve()):
        obstacle = "it contains the project"
    if obstacle:
        raise SpecError(
            f"{path}: a container would have to write to {folder}, and {obstacle}",
            f"a folder of its own, or one in {PROJECT}",
            f"runs/{path.name}, or name a folder that exists and has nothing else in it",
        )


def _check_writable(folder: Path, uid: int) -> None:
    """Check that a container that root starts, and that runs as another user, can write to a folder."""
    status = folder.stat()
    if uid not in (os.getuid(), status.st_uid) and not status.st_mode & 0o002:
        raise StorageError(
            f"{folder} belongs to uid {status.st_uid}, and for root the container runs as uid {uid}",
            "a folder of that user, as runs/ is",
            f"runs/{folder.name}, or `{INSTALL_TORCH}`, then no container is needed for this",
        )


def _list_neighbors(folder: Path, stand_in: Path, skipped: Sequence[str], mounts: Sequence[Mount]) -> Iterator[Mount]:
    """Yield read-only mounts of the files that the stand-in of a visible folder would hide; copy its links."""
    entries = [entry for entry in os.scandir(folder) if entry.name not in (*skipped, stand_in.name)]
    if len(entries) > MAX_ENTRIES:
        raise SpecError(
            f"{folder} has {len(entries):,} entries, and the output of a command in a container cannot lie next to so many",
            f"a folder with at most {MAX_ENTRIES}, or a folder of its own",
            "name a file below runs/",
        )
    targets = {mount.target for mount in mounts}
    for entry in entries:
        if entry.is_symlink():
            (stand_in / entry.name).symlink_to(os.readlink(entry))
        elif folder / entry.name not in targets and (entry.is_dir() or entry.is_file()):
            yield Mount(Path(entry.path), folder / entry.name)


def _make_place(mount: Mount, folder: Path, stand_in: Path) -> None:
    """Make the file or folder that a mount covers; the engine would make it as root."""
    if not mount.target.is_relative_to(folder):
        return
    stand_in_path = stand_in / mount.target.relative_to(folder)
    stand_in_path.parent.mkdir(parents=True, exist_ok=True)
    if mount.source.is_dir():
        stand_in_path.mkdir(exist_ok=True)
    elif not stand_in_path.is_symlink():
        stand_in_path.touch()
