"""Reads the limits of this process's control groups (cgroups): version 1, 2, both at once, or none.

The lowest limit of a group and all its ancestors counts. How much of the ancestors is visible depends on the container: a
private namespace shows the process's own group as `/`; other setups show the host's path in `/proc/self/cgroup` and mount
only this group, or the whole tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from drivetrain.hardware.kernel_file import parse_cpu_list, parse_number, read_text

_CONTROLLERS = ("cpu", "cpuset", "memory")


@dataclass(frozen=True)
class CgroupController:
    """This process's group of one controller: its folder and visible ancestors, innermost first."""

    version: int
    folders: tuple[Path, ...]


def read_controllers(root: Path) -> dict[str, CgroupController]:
    """Read the groups of this process, by controller."""
    paths, mounts = _read_paths(root), _read_mounts(root)
    return {name: _read_controller(root, name, paths, mounts) for name in _CONTROLLERS}


def _read_controller(
    root: Path, name: str, paths: dict[str, str], mounts: dict[str, list[tuple[str, str]]]
) -> CgroupController:
    """Read one controller. Version 1 comes first, since a controller mounted there is not available in version 2."""
    version, key = (1, name) if name in mounts else (2, "")
    folders = [_list_folders(root, mounted, point, paths.get(key, "/")) for mounted, point in mounts.get(key, [])]
    return CgroupController(version, max(folders, key=len, default=()))


def _read_counters(path: Path) -> dict[str, int | None]:
    """Read the lines `name number` of a file."""
    rows = (line.split() for line in read_text(path).splitlines())
    return {row[0]: parse_number(row[1]) for row in rows if len(row) > 1}


def _read_paths(root: Path) -> dict[str, str]:
    """Read the path of the process's group by controller; version 2 has the empty name."""
    by_controller = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, remainder = line.partition(":")
        controllers, _, path = remainder.partition(":")
        by_controller.update(dict.fromkeys(controllers.split(","), path))
    return by_controller


def _read_mounts(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Read the mounted hierarchies by controller: (path inside the hierarchy, mount point)."""
    by_controller: dict[str, list[tuple[str, str]]] = {}
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount_part, _, right = line.partition(" - ")
        mount_fields, kind = mount_part.split(), right.split()
        if len(mount_fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for name in [""] if kind[0] == "cgroup2" else set(_CONTROLLERS) & set(kind[2].split(",")):
            by_controller.setdefault(name, []).append((mount_fields[3], mount_fields[4]))
    return by_controller or _list_usual_mounts(root)


def _list_usual_mounts(root: Path) -> dict[str, list[tuple[str, str]]]:
    """List the usual mount points, if the mount table cannot be read."""
    base = Path("sys/fs/cgroup")
    if (root / base / "cgroup.controllers").exists():
        return {"": [("/", f"/{base}")]}
    return {name: [("/", f"/{base / name}")] for name in _CONTROLLERS if (root / base / name).is_dir()}


def _list_folders(root: Path, mounted: str, point: str, path: str) -> tuple[Path, ...]:
    """List the group's folder and its ancestors up to the mount point, as far as they exist."""
    top, group = root / point.lstrip("/"), PurePosixPath(path)
    names: tuple[str, ...] = ()
    levels_above = PurePosixPath(mounted).parts.count("..")
    if ".." in group.parts:
        pass  # above the namespace: only the mounted group can be read
    elif levels_above:
        names = _find_by_process(root, top, levels_above, group)
    elif group.is_relative_to(mounted):
        names = group.relative_to(mounted).parts
    folders = [top.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def _find_by_process(root: Path, top: Path, above: int, group: PurePosixPath) -> tuple[str, ...]:
    """Find the group by its member processes, if a private namespace meets the host's tree and no path names it."""
    process = read_text(root / "proc/self/stat").partition(" ")[0]
    for folder in top.glob("/".join(["*"] * above)):
        group_folder = folder.joinpath(*group.parts[1:])
        if process and process in read_text(group_folder / "cgroup.procs").split():
            return group_folder.relative_to(top).parts
    return ()


# In version 1 "no limit" is the largest page-aligned number, which depends on the page size.
_UNLIMITED = 2**62
_PERIOD_US = 100_000
_THROTTLED_UNITS = {"throttled_time": 1e9, "throttled_usec": 1e6}


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """Limits of this process; memory in bytes, None if there is no limit."""

    version: int
    """1, 2, or 0 for no cgroups."""
    cpuset: int | None
    """Number of CPUs in the cpuset; None if there is no such file."""
    quota: float | None
    """The lowest CPU quota, in CPUs."""
    memory: int | None
    """The lowest memory limit."""
    used: int | None
    """Non-reclaimable memory of the group with the lowest limit; without a limit, of the process's own group."""
    room: int | None
    """The smallest free memory of any group with a limit."""
    swap: bool
    """Whether the groups allow swapping; the machine may still have no swap."""


def read_limits(root: Path) -> CgroupLimits:
    """Read the limits below the file-system root `root`; an unreadable limit counts as none."""
    groups = {name: group for name, group in read_controllers(root).items() if group.folders}
    none = CgroupController(0, ())
    cpu = find_lowest_quota(groups.get("cpu", none))
    memory, used, room = find_lowest_limit(read_memory_levels(groups.get("memory", none)))
    return CgroupLimits(
        version=min((group.version for group in groups.values()), default=0),
        cpuset=_count_cpuset(groups.get("cpuset", none)),
        quota=next((_read_quota(cpu.version, folder) for folder in cpu.folders), None),
        memory=memory,
        used=used,
        room=room,
        swap=_allows_swap(groups.get("memory", none)),
    )


def find_lowest_quota(group: CgroupController) -> CgroupController:
    """Find the level with the lowest quota, which may be an ancestor such as a systemd slice; else the innermost."""
    levels = []
    for folder in group.folders:
        quota = _read_quota(group.version, folder)
        if quota:
            levels.append((quota, folder))
    lowest = (min(levels)[1],) if levels else group.folders[:1]
    return replace(group, folders=lowest)


def read_oom_kills(root: Path) -> int | None:
    """Read how many processes of the group the OOM killer has killed; None without the counter."""
    group = read_controllers(root)["memory"]
    name = {1: "memory.oom_control", 2: "memory.events"}.get(group.version, "")
    return _read_counters(group.folders[0] / name).get("oom_kill") if group.folders else None


def read_peak_memory(root: Path) -> int | None:
    """Read the peak memory of the group in bytes; None without the counter."""
    group = read_controllers(root)["memory"]
    name = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}.get(group.version, "")
    return parse_number(read_text(group.folders[0] / name)) if group.folders else None


def find_lowest_limit(levels: Iterable[tuple[int | None, int]]) -> tuple[int | None, int | None, int | None]:
    """Return the lowest limit, the use of its group, and the smallest free memory, in bytes."""
    limits_and_use = list(levels)
    limited = [(limit, used) for limit, used in limits_and_use if limit is not None]
    if not limited:
        return None, next((used for _, used in limits_and_use), None), None
    return *min(limited), min(max(limit - used, 0) for limit, used in limited)


def _count_cpuset(group: CgroupController) -> int | None:
    effective = {1: "cpuset.effective_cpus", 2: "cpuset.cpus.effective"}.get(group.version, "")
    for folder in group.folders:  # an empty set means the same as the parent's
        for name in (effective, "cpuset.cpus"):
            cpus = parse_cpu_list(read_text(folder / name))
            if cpus:
                return len(cpus)
    return None


def _read_quota(version: int, folder: Path) -> float | None:
    """Read the CPU quota of one level, in CPUs; None if it has none."""
    if version == 2:
        fields = [*read_text(folder / "cpu.max").split(), "", ""]
        quota, period = parse_number(fields[0]), parse_number(fields[1])
    else:
        quota, period = (parse_number(read_text(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return quota / (period or _PERIOD_US) if quota else None


def read_memory_levels(group: CgroupController) -> Iterator[tuple[int | None, int]]:
    """Read (limit, use) of each group, innermost first."""
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"), 2: ("memory.max", "memory.current", "")}
    for folder in group.folders:
        limit_file, use_file, start = names[group.version]
        counters = _read_counters(folder / "memory.stat")
        # A container's mount hides the ancestors, but version 1 reports their combined limit.
        limits = [parse_number(read_text(folder / limit_file)), counters.get("hierarchical_memory_limit")]
        # Above `memory.high` (systemd's MemoryHigh=) processes are throttled until they make no progress.
        if group.version == 2:
            limits.append(parse_number(read_text(folder / "memory.high")))
        limit = min((value for value in limits if value is not None and value < _UNLIMITED), default=None)
        use = parse_number(read_text(folder / use_file))
        if limit is not None or use is not None:
            # Pages of files, which a process may have mapped or read twice: the kernel drops them where memory is short.
            pages = sum(counters.get(f"{start}{kind}_file") or 0 for kind in ("inactive", "active"))
            yield limit, max((use or 0) - pages, 0)


def _allows_swap(group: CgroupController) -> bool:
    """Return False if a group's limit for memory plus swap leaves no space for swap."""
    for folder in group.folders:
        if group.version == 2 and parse_number(read_text(folder / "memory.swap.max")) == 0:
            return False
        memory, total = (parse_number(read_text(folder / f"memory.{name}limit_in_bytes")) for name in ("", "memsw."))
        if group.version == 1 and total is not None and total == memory and total < _UNLIMITED:
            return False
    return True


def read_memory_limit() -> int:
    """Return the bytes of memory that this process may use: the machine's memory, or its limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(read_limits(Path("/")).memory or machine, machine)


class ProcessCgroup:
    """Reads the cgroups with the lowest CPU quota and the lowest memory limit of this process."""

    def __init__(self, root: Path = Path("/")) -> None:
        groups = read_controllers(root)
        self.cpu, self.tightest = find_lowest_quota(groups["cpu"]), _find_lowest_memory(groups["memory"])

    def read_memory(self) -> tuple[int | None, int | None]:
        """Read the limit and the use of its group, in bytes; None if there is none."""
        return find_lowest_limit(read_memory_levels(self.tightest))[:2]

    def read_throttled_seconds(self) -> float | None:
        """Read for how many seconds the quota has throttled the group, in total; None without the counter."""
        for folder in self.cpu.folders[:1]:
            for name, count in _read_counters(folder / "cpu.stat").items():
                if name in _THROTTLED_UNITS and count is not None:
                    return count / _THROTTLED_UNITS[name]
        return None


def _find_lowest_memory(group: CgroupController) -> CgroupController:
    """Find the level with the lowest limit, else the innermost; reading one level is cheaper than reading all."""
    levels = [replace(group, folders=(folder,)) for folder in group.folders]
    limits = [find_lowest_limit(read_memory_levels(level))[0] for level in levels]
    lowest = min((limit for limit in limits if limit is not None), default=None)
    return levels[limits.index(lowest)] if levels else group


def is_killed_as_one(root: Path = Path("/")) -> bool:
    """Return whether the kernel, at the memory limit, kills every process of our group instead of the largest alone."""
    memory = read_controllers(root)["memory"]
    return memory.version == 2 and any(read_text(folder / "memory.oom.group") == "1" for folder in memory.folders)
