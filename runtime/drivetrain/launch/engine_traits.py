"""Traits of an engine that change how containers are started, from `docker info`."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SNAP = "/var/snap/"
_CONTROLLERS = {"cpus": "cpu", "memory": "memory", "pids": "pids"}
"""The cgroup controller that each limit needs."""
_LIMITS = {"CpuCfsQuota": "cpus", "MemoryLimit": "memory", "PidsLimit": "pids"}
"""Warnings of an engine about its cgroup controllers, and the limit that needs each."""


@dataclass(frozen=True)
class EngineTraits:
    """An engine of the host."""

    rootless: bool = False
    """Uid 0 in a container is the user who runs the engine; any other uid is one of that user's subordinate ids."""
    selinux: bool = False
    """A container may read only files with its label, unless it runs without one."""
    snap: bool = False
    """It sees the home folders, without hidden files, and neither /tmp nor /run/user."""
    desktop: bool = False
    """It runs in a machine of its own, which sees the home folders."""
    remapped: bool = False
    """Every uid in a container is another one outside (`userns-remap`), which can write no file of the user."""
    unenforced: tuple[str, ...] = ()
    """Limits that it cannot enforce."""
    cgroup: str = ""
    """The version of the host's control groups."""

    def owner(self) -> dict[str, str]:
        """Return the variables of a user whose files belong to the caller; empty if the engine leaves that open."""
        return {"DRIVETRAIN_UID": "0", "DRIVETRAIN_GID": "0"} if self.rootless else {}

    def variables(self, *, gpu: bool) -> dict[str, str]:
        """Return the compose variables for this engine: it refuses CPUs that it cannot limit, and ignores other limits."""
        name = "DRIVETRAIN_GPU_CPUS" if gpu else "DRIVETRAIN_CPUS"
        limits = {name: "0"} if "cpus" in self.unenforced else {}
        return limits | ({"DRIVETRAIN_USERNS": "host"} if self.remapped else {})

    def labels(self, *, outside: bool) -> dict[str, Any]:
        """Return the settings that let a compose service read files outside of the project where SELinux enforces.

        Those are not relabelled: other programs need their labels, and they may belong to somebody else.
        """
        return {"security_opt": ["label=disable"]} if self.selinux and outside else {}

    def note(self) -> str:
        """Describe limits that are not enforced; empty if all are."""
        if not self.unenforced:
            return ""
        return f"limits: this engine cannot enforce {', '.join(self.unenforced)}: {'; '.join(self.explain_limits())}"

    def explain_limits(self) -> tuple[str, str]:
        """Explain why the engine cannot enforce some limits, and what makes it enforce all."""
        if self.rootless and self.cgroup == "1":
            return "it is rootless, and the host has cgroup v1", "boot it with systemd.unified_cgroup_hierarchy=1"
        if self.rootless:
            setting = "Delegate=cpu cpuset io memory pids in /etc/systemd/system/user@.service.d/delegate.conf"
            return "it is rootless, and systemd has not delegated the controllers to this user", setting
        return "its host lacks the cgroup controllers", "enable them in the kernel's command line"


def find(info: Mapping[str, Any], delegated: Collection[str] | None = None) -> EngineTraits:
    """Find the traits of an engine.

    Args:
        info: information from the engine (`docker info`).
        delegated: the cgroup controllers that a rootless engine has on a host with cgroup v2; None to look for them, if
            it runs on this machine. Engine 20.10 claims all controllers of the host.
    """
    options = {setting for option in info.get("SecurityOptions") or () for setting in str(option).split(",")}
    rootless, cgroup = "name=rootless" in options, str(info.get("CgroupVersion", ""))
    if rootless and cgroup == "2" and delegated is None and info.get("Name") == socket.gethostname():
        delegated = _read_delegated(os.getuid())
    lacks = {limit for limit, name in _CONTROLLERS.items() if delegated is not None and name not in delegated}
    return EngineTraits(
        rootless=rootless,
        selinux="name=selinux" in options,
        remapped="name=userns" in options,
        snap=str(info.get("DockerRootDir", "")).startswith(_SNAP),
        desktop=info.get("OperatingSystem") == "Docker Desktop",
        unenforced=tuple(limit for key, limit in _LIMITS.items() if _is_false(info, key) or limit in lacks),
        cgroup=cgroup,
    )


def _read_delegated(user: int, root: Path = Path("/sys/fs/cgroup")) -> frozenset[str] | None:
    """Read the cgroup controllers that systemd gives to a user; None where it runs no services for the user."""
    service = root / "user.slice" / f"user-{user}.slice" / f"user@{user}.service" / "cgroup.controllers"
    try:
        return frozenset(service.read_text().split())
    except OSError:
        return None


def _is_false(info: Mapping[str, Any], key: str) -> bool:
    """Return whether the engine says no; the command line writes `CPUCfsQuota`, old and other engines say nothing."""
    return next((value for name, value in info.items() if name.lower() == key.lower()), None) is False
