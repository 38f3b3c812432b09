"""Control groups: the limits that the kernel holds this process to. Version 1, 2, both at once, or none.

The lowest limit of a group and all its ancestors counts. What of the ancestors can be seen depends on the
container: a private namespace shows the own group as `/`, other setups show the host's path in
`/proc/self/cgroup` and mount only the own group, or the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

# "No limit" in version 1 is the largest page-aligned number, which differs by page size.
_UNLIMITED = 2**62
_CONTROLLERS = ("cpu", "cpuset", "memory")
_PERIOD_US = 100_000


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """Limits of this process; memory in bytes, None where there is no limit."""

    version: int
    """1, 2, or 0 for no control groups."""
    cpuset: int | None
    """CPUs in the cpuset; None where there is no such file."""
    quota: float | None
    """CPUs that the lowest quota amounts to."""
    memory: int | None
    """The lowest memory limit."""
    used: int | None
    """What the group with the lowest limit uses and cannot give back; without a limit, our own group."""
    room: int | None
    """The least that any group with a limit has left."""
    swap: bool
    """Whether the groups allow swapping; the machine may still have none."""


@dataclass(frozen=True)
class CgroupController:
    """One controller's group of this process: its folder and its visible ancestors, innermost first."""

    version: int
    folders: tuple[Path, ...]


def read_limits(root: Path) -> CgroupLimits:
    """Read the limits below the file-system root `root`; what cannot be read is no limit."""
    groups = {name: group for name, group in groups_of(root).items() if group.folders}
    none = CgroupController(0, ())
    cpu = tightest_quota(groups.get("cpu", none))
    memory, used, room = lowest(memory_levels(groups.get("memory", none)))
    return CgroupLimits(
        version=min((group.version for group in groups.values()), default=0),
        cpuset=_cpuset(groups.get("cpuset", none)),
        quota=next((_quota(cpu.version, folder) for folder in cpu.folders), None),
        memory=memory,
        used=used,
        room=room,
        swap=_swap(groups.get("memory", none)),
    )


def tightest_quota(group: CgroupController) -> CgroupController:
    """The level with the lowest quota, which may be an ancestor such as a systemd slice; the innermost if none has
    one.
    """
    levels = [(quota, folder) for folder in group.folders if (quota := _quota(group.version, folder))]
    return replace(group, folders=(min(levels)[1],) if levels else group.folders[:1])


def throttled(group: CgroupController) -> float | None:
    """Seconds that its quota has held a level back so far; None without the counter."""
    for folder in group.folders[:1]:
        stat = dict(line.split()[:2] for line in text(folder / "cpu.stat").splitlines() if " " in line)
        nanoseconds, microseconds = number(stat.get("throttled_time", "")), number(stat.get("throttled_usec", ""))
        if nanoseconds is not None or microseconds is not None:
            return nanoseconds / 1e9 if nanoseconds is not None else (microseconds or 0) / 1e6
    return None


def oom_kills(root: Path) -> int | None:
    """How often the kernel has killed a process of our group for memory; None without the counter."""
    group = groups_of(root)["memory"]
    name = {1: "memory.oom_control", 2: "memory.events"}.get(group.version, "")
    for folder in group.folders[:1]:
        rows = dict(line.split()[:2] for line in text(folder / name).splitlines() if " " in line)
        return number(rows.get("oom_kill", ""))
    return None


def peak(root: Path) -> int | None:
    """The most memory that our group has used, in bytes; None without the counter."""
    group = groups_of(root)["memory"]
    name = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}.get(group.version, "")
    return number(text(group.folders[0] / name)) if group.folders else None


def text(path: Path) -> str:
    """The stripped text of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(value: str) -> int | None:
    """A kernel file's number; None for `max`, `-1`, nothing and garbage."""
    return int(value) if value.isascii() and value.isdigit() else None


def cpu_list(value: str) -> frozenset[int]:
    """The CPUs in a kernel list such as `0-3,8`; garbage parts are left out."""
    found: set[int] = set()
    for part in value.split(","):
        first, _, last = (p.strip() for p in part.partition("-"))
        low, high = number(first), number(last or first)
        if low is not None and high is not None:
            found.update(range(low, high + 1))
    return frozenset(found)


def lowest(levels: Iterable[tuple[int | None, int]]) -> tuple[int | None, int | None, int | None]:
    """Of levels as `memory_levels` gives them: the lowest limit, what its group uses, and the least room of any."""
    found = list(levels)
    limited = [(limit, used) for limit, used in found if limit is not None]
    if not limited:
        return None, next((used for _, used in found), None), None
    return *min(limited), min(max(limit - used, 0) for limit, used in limited)


def groups_of(root: Path) -> dict[str, CgroupController]:
    """The groups of this process by controller."""
    paths, mounts = _paths(root), _mounts(root)
    return {name: _group(root, name, paths, mounts) for name in _CONTROLLERS}


def _group(root: Path, name: str, paths: dict[str, str], mounts: dict[str, list[tuple[str, str]]]) -> CgroupController:
    """A controller that version 1 holds is lost to version 2, so look there first."""
    version, key = (1, name) if name in mounts else (2, "")
    folders = [_folders(root, mounted, point, paths.get(key, "/")) for mounted, point in mounts.get(key, [])]
    return CgroupController(version, max(folders, key=len, default=()))


def _paths(root: Path) -> dict[str, str]:
    """The path of our group by controller; version 2 goes by the empty name."""
    found = {}
    for line in text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Where hierarchies are mounted, by controller: (path inside the hierarchy, mount point)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for name in [""] if kind[0] == "cgroup2" else set(_CONTROLLERS) & set(kind[2].split(",")):
            found.setdefault(name, []).append((place[3], place[4]))
    return found or _customary(root)


def _customary(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Without a readable mount table: the places that every distribution uses."""
    base = Path("sys/fs/cgroup")
    if (root / base / "cgroup.controllers").exists():
        return {"": [("/", f"/{base}")]}
    return {name: [("/", f"/{base / name}")] for name in _CONTROLLERS if (root / base / name).is_dir()}


def _folders(root: Path, mounted: str, point: str, path: str) -> tuple[Path, ...]:
    """Our group's folder and its ancestors up to the mount point, as far as they exist."""
    top, group = root / point.lstrip("/"), PurePosixPath(path)
    names: tuple[str, ...] = ()
    if ".." in group.parts:
        pass  # above what our namespace shows: only the mounted group can be read
    elif above := PurePosixPath(mounted).parts.count(".."):
        names = _search(root, top, above, group)
    elif group.is_relative_to(mounted):
        names = group.relative_to(mounted).parts
    folders = [top.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def _search(root: Path, top: Path, above: int, group: PurePosixPath) -> tuple[str, ...]:
    """Where a private namespace meets the host's tree, nothing names our group: it is the one that holds us."""
    process = text(root / "proc/self/stat").partition(" ")[0]
    for folder in top.glob("/".join(["*"] * above)):
        own = folder.joinpath(*group.parts[1:])
        if process and process in text(own / "cgroup.procs").split():
            return own.relative_to(top).parts
    return ()


def _cpuset(group: CgroupController) -> int | None:
    effective = {1: "cpuset.effective_cpus", 2: "cpuset.cpus.effective"}.get(group.version, "")
    for folder in group.folders:  # an empty set means: the same as the parent's
        for name in (effective, "cpuset.cpus"):
            if cpus := cpu_list(text(folder / name)):
                return len(cpus)
    return None


def _quota(version: int, folder: Path) -> float | None:
    """CPUs that one level's quota amounts to; None where it has none."""
    if version == 2:
        words = [*text(folder / "cpu.max").split(), "", ""]
        quota, period = number(words[0]), number(words[1])
    else:
        quota, period = (number(text(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return quota / (period or _PERIOD_US) if quota else None


def memory_levels(group: CgroupController) -> Iterator[tuple[int | None, int]]:
    """(limit, use) of each group, innermost first."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for folder in group.folders:
        limit_file, use_file, reclaimable = names[group.version]
        stat = dict(line.split()[:2] for line in text(folder / "memory.stat").splitlines() if " " in line)
        # A container's mount hides the ancestors, but version 1 says what they allow together.
        limits = [number(text(folder / limit_file)), number(stat.get("hierarchical_memory_limit", ""))]
        # Above `memory.high` (systemd's MemoryHigh=) processes are not killed, but throttled until they make no
        # progress.
        limits += [number(text(folder / "memory.high"))] if group.version == 2 else []
        limit = min((value for value in limits if value is not None and value < _UNLIMITED), default=None)
        use = number(text(folder / use_file))
        if limit is not None or use is not None:
            yield limit, max((use or 0) - (number(stat.get(reclaimable, "")) or 0), 0)


def _swap(group: CgroupController) -> bool:
    """False where a group's limit for memory and swap together leaves no room for swap."""
    for folder in group.folders:
        if group.version == 2 and number(text(folder / "memory.swap.max")) == 0:
            return False
        both = text(folder / "memory.memsw.limit_in_bytes")
        if group.version == 1 and _finite(both) and both == text(folder / "memory.limit_in_bytes"):
            return False
    return True


def _finite(value: str) -> bool:
    limit = number(value)
    return limit is not None and limit < _UNLIMITED
