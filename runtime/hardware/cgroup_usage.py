"""Memory use and throttling of this process's cgroup, read every second; its location is determined only once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtime.hardware import cgroup
from runtime.hardware.cgroup_tree import CgroupController, groups_of
from runtime.hardware.kernel_file import read_text


class ProcessCgroup:
    """The cgroups of this process below `root`: those with the lowest CPU quota and the lowest memory limit at the start."""

    def __init__(self, root: Path = Path("/")) -> None:
        groups = groups_of(root)
        self.cpu, self.tightest = cgroup.tightest_quota(groups["cpu"]), _tightest(groups["memory"])

    def memory(self) -> tuple[int | None, int | None]:
        """The limit and the use of its group, in bytes; None if there is none."""
        return cgroup.lowest(cgroup.memory_levels(self.tightest))[:2]

    def throttled(self) -> float | None:
        """Total seconds for which the quota has throttled the group; None without the counter."""
        return cgroup.throttled_seconds(self.cpu)


def _tightest(group: CgroupController) -> CgroupController:
    """The level with the lowest limit, else the innermost; reading one level is cheaper than reading all."""
    alone = [replace(group, folders=(folder,)) for folder in group.folders]
    limits = [
        (limit, number)
        for number, level in enumerate(alone)
        if (limit := cgroup.lowest(cgroup.memory_levels(level))[0]) is not None
    ]
    return alone[min(limits)[1]] if limits else alone[0] if alone else group


def is_killed_as_one(root: Path = Path("/")) -> bool:
    """Whether the kernel, at the memory limit, kills every process of our group instead of the largest alone."""
    memory = groups_of(root)["memory"]
    return memory.version == 2 and any(read_text(folder / "memory.oom.group") == "1" for folder in memory.folders)
