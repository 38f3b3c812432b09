"""Checks shared memory, disk space, the owner of runs/, and whether compiled code can be stored and executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drivetrain.cli.doctor.finding import Finding, fail, ok, warn
from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.system.units import format_bytes

MIB, GIB = 2**20, 2**30


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield all checks of this file."""
    yield _check_shm(snapshot)
    yield _check_free_space(snapshot)
    yield _check_owner(snapshot)
    yield from _check_cache(snapshot)


def _check_shm(snapshot: Snapshot) -> Finding:
    shm = snapshot.hardware.storage.shm
    fix = "docker: --shm-size 256m; compose: DRIVETRAIN_SHM=256m in .env; in a job: limits.shm: 256m"
    if shm is None and snapshot.hardware.system == "Darwin":
        return ok("/dev/shm", "macOS has none; on a CPU no loader workers are used unless the job asks for them")
    if shm is None:
        return warn("/dev/shm", "does not exist: loader workers cannot pass batches", fix)
    if shm <= 64 * MIB:
        return warn(
            "/dev/shm", f"{format_bytes(shm)}, the Docker default: loader workers may crash with a bus error", fix
        )
    return ok("/dev/shm", format_bytes(shm))


def _check_free_space(snapshot: Snapshot) -> Finding:
    total, free = snapshot.disk(snapshot.runs)
    text = f"{format_bytes(free)} of {format_bytes(total)} free for {snapshot.runs}"
    fix = f"du -sh {snapshot.runs}/* shows the size of each run; docker system prune removes old images"
    if free < GIB:
        return fail("disk", f"{text}: not enough for checkpoints", fix)
    if free <= total / 20:
        return warn("disk", f"{text}: it is {1 - free / total:.0%} full", fix)
    return ok("disk", text)


def _check_owner(snapshot: Snapshot) -> Finding:
    runs, uid = snapshot.runs, snapshot.uid
    if not runs.exists():
        return ok("runs", f"{runs} does not exist yet; the first run creates it")
    foreign = next(
        (path for path in [runs, *sorted(filter(Path.is_dir, runs.iterdir()))] if _is_locked(path, uid)), None
    )
    if foreign is None:
        return ok("runs", f"{runs} is writable")
    owner = foreign.stat().st_uid
    return fail("runs", f"{foreign} belongs to uid {owner}, but this user has uid {uid}", f"sudo chown -R {uid} {runs}")


def _is_locked(path: Path, uid: int) -> bool:
    """Return whether a user may not write here, by owner and others; group permissions do not help in compose."""
    status = path.stat()
    return uid not in (0, status.st_uid) and not status.st_mode & 0o002


def _check_cache(snapshot: Snapshot) -> Iterator[Finding]:
    hardware, storage = snapshot.hardware, snapshot.hardware.storage
    if not storage.cache_writable:
        yield warn(
            "compile cache",
            f"{storage.cache} is not writable: every run compiles again",
            "set TORCHINDUCTOR_CACHE_DIR to a writable folder",
        )
    elif not storage.cache_exec:
        yield warn(
            "compile cache",
            f"{storage.cache} is mounted noexec: compiled code cannot run there",
            "set TORCHINDUCTOR_CACHE_DIR to a folder without noexec",
        )
    else:
        yield ok("compile cache", storage.cache)
    if not storage.tmp_exec:
        yield warn(
            "temporary folder",
            "mounted noexec: compiled libraries cannot be loaded from there",
            "set TMPDIR to a folder without noexec",
        )
    if hardware.compiler is None:
        yield warn(
            "compiler",
            "no C++ compiler with Python headers: torch.compile cannot be used",
            "sudo apt-get install g++ python3-dev",
        )
    else:
        yield ok("compiler", hardware.compiler)
    if hardware.torch is None:
        yield _check_without_torch(snapshot)
    elif not snapshot.loaded:
        yield fail(
            "torch",
            f"{hardware.torch.version} is installed but cannot be loaded",
            f"python -c 'import torch' shows why; {INSTALL_TORCH} installs it again",
        )
    else:
        yield ok("torch", hardware.torch.version)


def _check_without_torch(snapshot: Snapshot) -> Finding:
    """Check that training works without torch: with an engine, containers train and other commands run in the image."""
    if snapshot.run(["docker", "version", "--format", "{{json .}}"]) is None:
        return warn("torch", "not installed, and no Docker engine is available: nothing can train", INSTALL_TORCH)
    return ok("torch", "not installed here: commands that need it run in the Docker image")
