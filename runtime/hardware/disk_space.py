"""Storage: shared memory, room for the run folder, and where compiled code may be written and executed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from runtime.hardware.facts import Storage
from runtime.system.files import is_private

DECODED = "decoded"
"""Folder of decoded images inside the cache."""
Mount = Callable[[Path], os.statvfs_result]


def read_storage(root: Path, runs: Path, environ: Mapping[str, str], mount: Mount = os.statvfs) -> Storage:
    """Storage facts.

    Args:
        root: `/`, or the root of a recorded tree; /dev/shm is looked for below it.
        runs: the folder that run folders go to; need not exist yet.
        environ: the process environment.
        mount: answers size and flags of the mount that a path lies on.
    """
    shm, cache = _mount(root / "dev/shm", mount), _cache(environ)
    disk, code = _mount(_existing(runs), mount), _mount(_existing(cache), mount)
    return Storage(
        # One that cannot be written is as good as full.
        shm=(0 if shm.f_flag & os.ST_RDONLY else shm.f_blocks * shm.f_frsize) if shm else None,
        shm_exec=_exec(shm),
        tmp_exec=_exec(_mount(_temporary(), mount)),
        runs_free=disk.f_bavail * disk.f_frsize if disk else None,
        cache=str(cache),
        cache_exec=_exec(code),
        cache_writable=_writable(cache),
        cache_room=code.f_bavail * code.f_frsize + _taken(cache / DECODED) if code else None,
    )


def _cache(environ: Mapping[str, str]) -> Path:
    """Where compiled code goes: the compiler's own variable, else the user's cache folder."""
    if folder := environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(folder)
    if folder := environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "drivetrain/compile"
    if folder := environ.get("HOME"):
        return Path(folder) / ".cache/drivetrain/compile"
    # A container user without a name has no home; its number keeps users apart.
    return _own(Path(environ.get("TMPDIR") or "/tmp") / f"drivetrain-{os.getuid()}") / "compile"


def _own(folder: Path) -> Path:
    """The folder if it is this user's own, else a new one: its name is known, so anybody could have made it."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        return folder if is_private(folder) else Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError:  # nothing can be written here, which the facts say
        return folder


def _taken(folder: Path) -> int:
    """Bytes of the files in a folder."""
    try:
        with os.scandir(folder) as files:
            return sum(file.stat().st_size for file in files)
    except OSError:  # it is not there yet, or another run is removing files
        return 0


def _temporary() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder at all can be written
        return None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists: a new folder lies on the same mount."""
    path = Path(os.path.abspath(path))
    return next((p for p in (path, *path.parents) if os.path.exists(p)), path)


def _mount(path: Path | None, mount: Mount) -> os.statvfs_result | None:
    try:
        return mount(path) if path else None
    except OSError:
        return None


def _exec(found: os.statvfs_result | None) -> bool:
    return found is not None and not found.f_flag & os.ST_NOEXEC


def _writable(path: Path) -> bool:
    folder = _existing(path)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
