"""Finds this process's control groups (cgroups) and their ancestors: version 1, 2, both at once, or none.

How much of the ancestors is visible depends on the container: a private namespace shows the process's own group as `/`;
other setups show the host's path in `/proc/self/cgroup` and mount only this group, or the whole tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime.hardware.kernel_file import read_text

_CONTROLLERS = ("cpu", "cpuset", "memory")


@dataclass(frozen=True)
class CgroupController:
    """This process's group of one controller: its folder and visible ancestors, innermost first."""

    version: int
    folders: tuple[Path, ...]


def groups_of(root: Path) -> dict[str, CgroupController]:
    """The groups of this process, by controller."""
    paths, mounts = _paths(root), _mounts(root)
    return {name: _group(root, name, paths, mounts) for name in _CONTROLLERS}


def _group(root: Path, name: str, paths: dict[str, str], mounts: dict[str, list[tuple[str, str]]]) -> CgroupController:
    """Version 1 comes first, since a controller mounted there is not available in version 2."""
    version, key = (1, name) if name in mounts else (2, "")
    folders = [_folders(root, mounted, point, paths.get(key, "/")) for mounted, point in mounts.get(key, [])]
    return CgroupController(version, max(folders, key=len, default=()))


def _paths(root: Path) -> dict[str, str]:
    """The path of the process's group by controller; version 2 has the empty name."""
    found = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Mounted hierarchies by controller: (path inside the hierarchy, mount point)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for name in [""] if kind[0] == "cgroup2" else set(_CONTROLLERS) & set(kind[2].split(",")):
            found.setdefault(name, []).append((place[3], place[4]))
    return found or _customary(root)


def _customary(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The usual mount points, if the mount table cannot be read."""
    base = Path("sys/fs/cgroup")
    if (root / base / "cgroup.controllers").exists():
        return {"": [("/", f"/{base}")]}
    return {name: [("/", f"/{base / name}")] for name in _CONTROLLERS if (root / base / name).is_dir()}


def _folders(root: Path, mounted: str, point: str, path: str) -> tuple[Path, ...]:
    """The group's folder and its ancestors up to the mount point, as far as they exist."""
    top, group = root / point.lstrip("/"), PurePosixPath(path)
    names: tuple[str, ...] = ()
    if ".." in group.parts:
        pass  # above the namespace: only the mounted group can be read
    elif above := PurePosixPath(mounted).parts.count(".."):
        names = _search(root, top, above, group)
    elif group.is_relative_to(mounted):
        names = group.relative_to(mounted).parts
    folders = [top.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def _search(root: Path, top: Path, above: int, group: PurePosixPath) -> tuple[str, ...]:
    """Find the group by its member processes, if a private namespace meets the host's tree and no path names it."""
    process = read_text(root / "proc/self/stat").partition(" ")[0]
    for folder in top.glob("/".join(["*"] * above)):
        own = folder.joinpath(*group.parts[1:])
        if process and process in read_text(own / "cgroup.procs").split():
            return own.relative_to(top).parts
    return ()
