"""Own group: what is read every second of the control group of this process; where it lies is looked up once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtime.hardware import cgroup


class ProcessCgroup:
    """The groups of this process below the file-system root `root` whose quota and memory limit are the lowest by now."""

    def __init__(self, root: Path = Path("/")) -> None:
        groups = cgroup.groups_of(root)
        self.cpu, self.tightest = cgroup.tightest_quota(groups["cpu"]), _tightest(groups["memory"])

    def memory(self) -> tuple[int | None, int | None]:
        """The limit and what its group uses, in bytes; None for what there is not."""
        return cgroup.lowest(cgroup.memory_levels(self.tightest))[:2]

    def throttled(self) -> float | None:
        """Seconds that the quota has held its group back so far; None without the counter."""
        return cgroup.throttled(self.cpu)


def _tightest(group: cgroup.CgroupController) -> cgroup.CgroupController:
    """The level with the lowest limit, the innermost where none has one: the kernel adds each of them up when asked."""
    alone = [replace(group, folders=(folder,)) for folder in group.folders]
    limits = [
        (limit, number)
        for number, level in enumerate(alone)
        if (limit := cgroup.lowest(cgroup.memory_levels(level))[0]) is not None
    ]
    return alone[min(limits)[1]] if limits else alone[0] if alone else group
