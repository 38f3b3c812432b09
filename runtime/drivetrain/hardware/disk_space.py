"""Reads shared memory, free disk space, and where compiled code may be written and executed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from drivetrain.hardware.facts import Storage
from drivetrain.system.files import is_private

DECODED_FOLDER = "decoded"
"""Folder of decoded images in the cache."""
FETCHED_FOLDER = "fetched"
"""Folder of data and weights of object stores and web servers that are read whole, in the cache."""
Mount = Callable[[Path], os.statvfs_result]


def read_storage(root: Path, runs: Path, environ: Mapping[str, str], mount: Mount = os.statvfs) -> Storage:
    """Read shared memory and disks.

    Args:
        root: `/`, or the root of a recorded tree, which has /dev/shm.
        runs: the parent of the run folders; need not exist yet.
        environ: environment variables of the process.
        mount: returns size and flags of the mount of a path.
    """
    shm, cache = _read_mount(root / "dev/shm", mount), find_cache_folder(environ)
    folder = _find_existing(cache)
    disk, code = _read_mount(_find_existing(runs), mount), _read_mount(folder, mount)
    return Storage(
        # A read-only /dev/shm is as good as a full one.
        shm=(0 if shm.f_flag & os.ST_RDONLY else shm.f_blocks * shm.f_frsize) if shm else None,
        shm_exec=_allows_execution(shm),
        tmp_exec=_allows_execution(_read_mount(_find_temporary_folder(), mount)),
        runs_free=disk.f_bavail * disk.f_frsize if disk else None,
        cache=str(cache),
        cache_exec=_allows_execution(code),
        cache_writable=folder.is_dir() and os.access(folder, os.W_OK | os.X_OK),
        cache_room=code.f_bavail * code.f_frsize + _sum_sizes(cache / DECODED_FOLDER) if code else None,
    )


def find_cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Find the folder for compiled code and other caches: the compiler's own variable, else the user's cache."""
    for variable, name in (
        ("TORCHINDUCTOR_CACHE_DIR", ""),
        ("XDG_CACHE_HOME", "drivetrain/compile"),
        ("HOME", ".cache/drivetrain/compile"),
    ):
        if environ.get(variable):
            return Path(environ[variable], name)
    # A container user without a name has no home; the user id keeps the folders of users separate.
    return _ensure_private(Path(environ.get("TMPDIR") or "/tmp") / f"drivetrain-{os.getuid()}") / "compile"


def _ensure_private(folder: Path) -> Path:
    """Return the folder if it is private, else a new one: anyone could have created one with so predictable a name."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        return folder if is_private(folder) else Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError:  # nothing can be written here, which `cache_writable` reports
        return folder


def _sum_sizes(folder: Path) -> int:
    """Sum the bytes of the files in a folder."""
    try:
        with os.scandir(folder) as files:
            return sum(file.stat().st_size for file in files)
    except OSError:  # it does not exist yet, or another run is removing files
        return 0


def _find_temporary_folder() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder can be written at all
        return None


def _find_existing(path: Path) -> Path:
    """Find the path, or its nearest existing parent: a new folder is on the same mount."""
    path = Path(os.path.abspath(path))
    return next((p for p in (path, *path.parents) if os.path.exists(p)), path)


def _read_mount(path: Path | None, mount: Mount) -> os.statvfs_result | None:
    try:
        return mount(path) if path else None
    except OSError:
        return None


def _allows_execution(status: os.statvfs_result | None) -> bool:
    # Python on macOS does not know this flag.
    return status is not None and not status.f_flag & getattr(os, "ST_NOEXEC", 0)
