"""What engines answer about themselves."""

from __future__ import annotations

ROOTFUL = {
    "SecurityOptions": ["name=seccomp,profile=default"],
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "CgroupVersion": "1",
    "DockerRootDir": "/var/lib/docker",
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
}
"""Recorded from engine 20.10, as are the differences of the rootless one."""
ROOTLESS = ROOTFUL | {
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
    "MemoryLimit": False,
    "CpuCfsQuota": False,
    "PidsLimit": False,
    "DockerRootDir": "/home/user/.local/share/docker",
}
