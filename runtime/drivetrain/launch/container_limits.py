"""The resource limits of a container, as variables of the compose files."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.job import Job
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT
from drivetrain.system.units import parse_bytes

SECURE_UID = 1000
"""Owner of the files if root starts a container from a checkout owned by root."""
GIB = 1 << 30
LEFT = 2 * GIB
"""Memory that a GPU job leaves to the host, unless that is more than half of it."""


def variables(info: Mapping[str, Any], job: Job, *, gpu: bool = False) -> dict[str, str]:
    """The job's limits; limits that it does not set keep the defaults of the compose files.

    Args:
        info: information about the host from the engine (`docker info`).
        job: the checked spec.
        gpu: whether the image is for GPUs; the default is then the whole host less one CPU and 2 GiB.
    """
    host, limits = float(info["NCPU"]), job.limits
    cpus = min(limits.cpus or (max(1.0, host - 1) if gpu else 2.0), host)
    if limits.cpus and cpus < limits.cpus:
        say(f"limits.cpus: {limits.cpus:g} requested, this host has {cpus:g}")
    memory = limits.memory or (whole_host(int(info["MemTotal"])) if gpu else None)
    names = ("DRIVETRAIN_GPU_CPUS", "DRIVETRAIN_GPU_MEMORY") if gpu else ("DRIVETRAIN_CPUS", "DRIVETRAIN_MEMORY")
    values = {names[0]: f"{cpus:g}"}
    if memory:
        values |= {names[1]: memory, "DRIVETRAIN_RESERVATION": str(min(GIB, parse_bytes(memory)))}
    if limits.shm:
        values["DRIVETRAIN_SHM"] = limits.shm
    return values


def whole_host(memory: int) -> str:
    """The host's memory less LEFT, in whole MiB as the engine expects it."""
    return f"{max(memory - LEFT, memory // 2) >> 20}m"


def owner(project: Path, *, report: bool = False) -> dict[str, str]:
    """The owner of the run's files: the current user; for root the owner of the checkout, else uid 1000.

    Args:
        project: the checkout.
        report: whether to inform root about the owner, which is done until there is a run.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        status = project.stat()
        uid, gid = (status.st_uid, status.st_gid) if status.st_uid else (SECURE_UID, SECURE_UID)
        if report and not _has_runs_of(uid, project):
            say(_about_owner(uid, project, is_owner=bool(status.st_uid)))
    return {"DRIVETRAIN_UID": str(uid), "DRIVETRAIN_GID": str(gid)}


def _about_owner(uid: int, project: Path, *, is_owner: bool) -> str:
    """What root must know: runs of a container that is not root belong to an account that may be somebody's."""
    kind = "checkout" if CHECKOUT else "folder"
    try:
        account = f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        account = f"uid {uid}, which no account here has"
    if is_owner:
        return f"started by root: files in runs/ will belong to {account}, the owner of this {kind}"
    return (
        f"started by root: files in runs/ will belong to {account}, because root owns the {kind}; "
        f"for another account: chown -R ACCOUNT: {shlex.quote(str(project))}"
    )


def _has_runs_of(uid: int, project: Path) -> bool:
    try:
        with os.scandir(project / "runs") as entries:
            return any(entry.stat().st_uid == uid and entry.is_dir() for entry in entries)
    except OSError:
        return False
