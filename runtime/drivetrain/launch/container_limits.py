"""The resource limits of a container, as variables of the compose files."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.job import Job
from drivetrain.job.limits import Limits
from drivetrain.launch import env_file
from drivetrain.launch.env_file import default_cpus, default_memory
from drivetrain.launch.project import PROJECT, RUNS
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT


def variables(info: Mapping[str, Any], job: Job | None, *, gpu: bool = False) -> dict[str, str]:
    """Return the limits of a job, else of the environment or .env, else the host less a reserve; and TZ.

    Args:
        info: information about the host from the engine (`docker info`).
        job: None for a command without one.
        gpu: whether the image is for GPUs.
    """
    host, limits = float(info["NCPU"]), job.limits if job else Limits()
    prefix = "DRIVETRAIN_GPU" if gpu else "DRIVETRAIN"
    settings = {**read_env_file(), **os.environ}
    cpus = f"{min(limits.cpus, host):g}" if limits.cpus else _cap(settings.get(f"{prefix}_CPUS"), host)
    if limits.cpus and host < limits.cpus:
        say(f"limits.cpus: {limits.cpus:g} requested, this host has {host:g}")
    memory = limits.memory or settings.get(f"{prefix}_MEMORY") or default_memory(int(info["MemTotal"]), gpu=gpu)
    values = {f"{prefix}_CPUS": cpus or f"{default_cpus(host, gpu=gpu):g}", f"{prefix}_MEMORY": memory}
    if limits.shm:
        values["DRIVETRAIN_SHM"] = limits.shm
    zone = settings.get("TZ") or find_zone()
    if zone:
        values["TZ"] = zone
    return values


def find_zone(file: Path = Path("/etc/localtime")) -> str:
    """Return the name of this machine's time zone, such as Europe/Berlin; empty if the file is no link to it."""
    return os.path.realpath(file).partition("/zoneinfo/")[2]


def _cap(cpus: str | None, host: float) -> str | None:
    """Cap the number of CPUs in .env: the host may have fewer since, and the engine refuses more than it has."""
    with contextlib.suppress(ValueError):  # the engine explains an unreadable number
        return f"{min(float(cpus), host):g}" if cpus else None
    return cpus


def read_env_file() -> dict[str, str]:
    """Read the settings in the checkout's .env, which compose reads."""
    try:
        lines = (PROJECT / ".env").read_text(encoding="utf-8").splitlines() if CHECKOUT else []
    except (OSError, ValueError):
        return {}
    return {name: value for name, equals_sign, value in (line.partition("=") for line in lines) if equals_sign}


def owner(project: Path, *, report: bool = False) -> dict[str, str]:
    """Return the owner of the run's files: the current user; for root the owner of the checkout, else uid 1000.

    Args:
        project: the checkout.
        report: whether to inform root about the owner, which is done until there is a run.
    """
    uid, gid = env_file.find_owner(project)
    if os.getuid() == 0 and report and not _has_runs_of(uid):
        say(_about_owner(uid, project, is_owner=bool(project.stat().st_uid)))
    return {"DRIVETRAIN_UID": str(uid), "DRIVETRAIN_GID": str(gid)}


def _about_owner(uid: int, project: Path, *, is_owner: bool) -> str:
    """Warn root: runs of a container that is not root belong to an account that may be somebody's."""
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


def _has_runs_of(uid: int) -> bool:
    try:
        with os.scandir(RUNS) as entries:
            return any(entry.stat().st_uid == uid and entry.is_dir() for entry in entries)
    except OSError:
        return False
