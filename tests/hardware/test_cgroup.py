"""Limits from recorded control groups: version 1, version 2, both, none, and files that say nothing sensible."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.hardware.cgroup import (
    CgroupLimits,
    ProcessCgroup,
    is_killed_as_one,
    read_limits,
    read_oom_kills,
    read_peak_memory,
)
from drivetrain.hardware.kernel_file import parse_cpu_list, parse_number
from tests.file_trees import plant_tree, write_files

MIB = 2**20
LEAF = "sys/fs/cgroup/system.slice/docker-5f2a.scope"


@pytest.mark.parametrize(
    ("tree", "version", "cpuset", "quota", "memory"),
    [
        ("none", 0, None, None, None),
        ("v1-unlimited", 1, 2, None, None),
        ("v1-limited", 1, 2, 1.5, 2048 * MIB),
        ("v1-private", 1, 1, 0.5, 300 * MIB),
        ("v1-parent", 1, 2, None, 256 * MIB),
        ("v2-unlimited", 2, 4, None, None),
        ("v2-leaf", 2, 4, 1.5, 512 * MIB),
        ("v2-ancestor", 2, 4, 0.5, 256 * MIB),
        ("v2-cpuset", 2, 2, 1.5, 512 * MIB),
        ("v2-private", 2, 4, 2.9, 512 * MIB),
        ("v2-private-over-host", 2, 4, 2.9, 512 * MIB),
        ("v2-container", 2, 2, 2.0, 4096 * MIB),
        ("v2-docker", 2, None, 0.5, 64 * MIB),
        ("hybrid", 1, 2, 0.5, 384 * MIB),
    ],
)
def test_recorded_tree(
    tmp_path: Path, tree: str, version: int, cpuset: int | None, quota: float | None, memory: int | None
) -> None:
    limits = read_limits(plant_tree(tmp_path, tree))
    assert (limits.version, limits.cpuset, limits.quota, limits.memory) == (version, cpuset, quota, memory)


@pytest.mark.parametrize(
    ("tree", "used", "room", "swap"),
    [
        ("none", None, None, True),
        ("v1-limited", 1761280, 2048 * MIB - 1761280, False),
        ("v1-parent", 2195456, 256 * MIB - 2195456, True),  # the parent's limit counts
        ("v2-leaf", 937984, 512 * MIB - 937984, False),
        ("v2-container", 708608, 4096 * MIB - 708608, False),
        ("v2-docker", 692224, 64 * MIB - 692224, False),
    ],
)
def test_memory_use_free_memory_and_swap(
    tmp_path: Path, tree: str, used: int | None, room: int | None, swap: bool
) -> None:
    limits = read_limits(plant_tree(tmp_path, tree))
    assert (limits.used, limits.room, limits.swap) == (used, room, swap)


def test_throttling_is_that_of_the_level_with_the_lowest_quota(tmp_path: Path) -> None:
    """A quota of a systemd slice (CPUQuota=) holds its children back; their own counters stay at 0."""
    root = plant_tree(tmp_path, "v2-ancestor")
    quotas = [path for path in root.rglob("cpu.max") if path.read_text().startswith("50000")]
    assert quotas
    for path in root.rglob("memory.max"):
        path.with_name("cpu.stat").write_text("nr_throttled 0\nthrottled_usec 0\n")
    quotas[0].with_name("cpu.stat").write_text("nr_throttled 9\nthrottled_usec 2500000\n")
    assert ProcessCgroup(root).read_throttled_seconds() == 2.5
    quotas[0].with_name("cpu.stat").unlink()
    assert ProcessCgroup(root).read_throttled_seconds() is None


def test_without_a_quota_the_counter_is_our_own(tmp_path: Path) -> None:
    root = plant_tree(tmp_path, "v2-unlimited")
    limit_file = max(root.rglob("memory.max"), key=lambda path: len(path.parts))
    limit_file.with_name("cpu.stat").write_text("throttled_usec 1000\n")
    assert ProcessCgroup(root).read_throttled_seconds() == 0.001


@pytest.mark.parametrize(("high", "memory"), [("max\n", 512), (f"{300 * MIB}\n", 300), (f"{700 * MIB}\n", 512)])
def test_memory_high_is_a_limit_too(tmp_path: Path, high: str, memory: int) -> None:
    assert read_limits(plant_tree(tmp_path, "v2-leaf", {f"{LEAF}/memory.high": high})).memory == memory * MIB


@pytest.mark.parametrize("tree", ["v2-leaf", "v2-private", "v2-container", "v2-docker"])
def test_kills_for_memory_in_version_2(tmp_path: Path, tree: str) -> None:
    """The line of memory.events that counts is that of kills: a group can reach its limit and go on."""
    limit_file = max(plant_tree(tmp_path, tree).rglob("memory.max"), key=lambda path: len(path.parts))
    events, highest = limit_file.with_name("memory.events"), limit_file.with_name("memory.peak")
    for kills in (0, 3):
        events.write_text(f"low 0\nhigh 0\nmax 97\noom 4\noom_kill {kills}\noom_group_kill 0\n")
        assert read_oom_kills(tmp_path) == kills
    highest.write_text(f"{512 * MIB}\n")
    assert read_peak_memory(tmp_path) == 512 * MIB
    events.unlink()
    highest.unlink()
    assert (read_oom_kills(tmp_path), read_peak_memory(tmp_path)) == (None, None)


@pytest.mark.parametrize(("text", "together"), [("0\n", False), ("1\n", True), ("", False)])
@pytest.mark.parametrize("folder", [LEAF, "sys/fs/cgroup/system.slice"])
def test_a_group_that_is_killed_as_one(tmp_path: Path, folder: str, text: str, together: bool) -> None:
    assert is_killed_as_one(plant_tree(tmp_path, "v2-leaf", {f"{folder}/memory.oom.group": text})) is together


def test_kills_for_memory_in_version_1(tmp_path: Path) -> None:
    limit_file = next(name for name in plant_tree(tmp_path, "v1-private").rglob("memory.limit_in_bytes"))
    limit_file.with_name("memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    limit_file.with_name("memory.max_usage_in_bytes").write_text(f"{300 * MIB}\n")
    assert (read_oom_kills(tmp_path), read_peak_memory(tmp_path)) == (2, 300 * MIB)


def test_page_cache_that_can_be_given_back_is_not_use(tmp_path: Path) -> None:
    files = {f"{LEAF}/memory.current": f"{300 * MIB}\n", f"{LEAF}/memory.stat": f"inactive_file {120 * MIB}\n"}
    limits = read_limits(plant_tree(tmp_path, "v2-leaf", files))
    assert (limits.used, limits.room) == (180 * MIB, 332 * MIB)


def test_a_full_parent_cgroup_limits_an_empty_child(tmp_path: Path) -> None:
    parent = "sys/fs/cgroup/system.slice"
    files = {
        f"{parent}/memory.max": f"{600 * MIB}\n",
        f"{parent}/memory.current": f"{590 * MIB}\n",
        f"{LEAF}/memory.current": f"{10 * MIB}\n",
    }
    limits = read_limits(plant_tree(tmp_path, "v2-leaf", files))
    assert (limits.memory, limits.room) == (512 * MIB, 10 * MIB)


@pytest.mark.parametrize(
    "text", ["", "\n", "max\n", "max 100000\n", "0 100000\n", "-1 100000\n", "x y z\n", "\x00\n", None]
)
def test_cpu_max_without_sense_is_no_quota(tmp_path: Path, text: str | None) -> None:
    assert read_limits(plant_tree(tmp_path, "v2-leaf", {f"{LEAF}/cpu.max": text})).quota is None


@pytest.mark.parametrize(
    ("text", "quota"), [("50000 100000\n", 0.5), ("290000\n", 2.9), ("30000 20000", 1.5), ("10 0", 1e-4)]
)
def test_cpu_max(tmp_path: Path, text: str, quota: float) -> None:
    assert read_limits(plant_tree(tmp_path, "v2-leaf", {f"{LEAF}/cpu.max": text})).quota == pytest.approx(quota)


@pytest.mark.parametrize("text", ["", "max\n", "-1\n", "lots\n", "9223372036854771712\n", None])
def test_memory_max_without_sense_is_no_limit(tmp_path: Path, text: str | None) -> None:
    limits = read_limits(plant_tree(tmp_path, "v2-leaf", {f"{LEAF}/memory.max": text}))
    assert (limits.memory, limits.room) == (None, None)


@pytest.mark.parametrize("text", ["", "-1\n", "9223372036854771712\n", "9223372036854710272\n", None])
@pytest.mark.parametrize(
    "stat", ["", "hierarchical_memory_limit 9223372036854771712\n", "torn\nhierarchical_memory_li"]
)
def test_limit_in_bytes_without_sense_is_no_limit(tmp_path: Path, text: str | None, stat: str) -> None:
    folder = "sys/fs/cgroup/memory"
    files = {f"{folder}/memory.limit_in_bytes": text, f"{folder}/memory.stat": stat}
    limits = read_limits(plant_tree(tmp_path, "v1-limited", files))
    assert (limits.memory, limits.room) == (None, None)


@pytest.mark.parametrize("missing_file", ["memory.stat", "memory.current", "cpuset.cpus.effective", "cpuset.cpus"])
def test_a_missing_file_is_survived(tmp_path: Path, missing_file: str) -> None:
    limits = read_limits(plant_tree(tmp_path, "v2-leaf", {f"{LEAF}/{missing_file}": None}))
    assert (limits.quota, limits.memory, limits.cpuset) == (1.5, 512 * MIB, 4)


def test_an_empty_cpuset_is_that_of_the_parent(tmp_path: Path) -> None:
    files = {f"{LEAF}/cpuset.cpus.effective": "\n", "sys/fs/cgroup/system.slice/cpuset.cpus.effective": "0-2\n"}
    assert read_limits(plant_tree(tmp_path, "v2-leaf", files)).cpuset == 3


def test_the_path_of_the_host_over_a_mount_of_only_our_group(tmp_path: Path) -> None:
    root = plant_tree(tmp_path, "v2-private", {"proc/self/cgroup": "0::/system.slice/docker-of-the-host.scope\n"})
    assert read_limits(root).quota == 2.9


def test_a_cgroup_above_the_namespace_reads_the_mounted_one(tmp_path: Path) -> None:
    assert read_limits(plant_tree(tmp_path, "v2-private", {"proc/self/cgroup": "0::/../neighbour\n"})).quota == 2.9


@pytest.mark.parametrize("tree", ["v1-limited", "v2-private"])
def test_without_a_mount_table_the_usual_places_are_read(tmp_path: Path, tree: str) -> None:
    expected = read_limits(plant_tree(tmp_path / "whole", tree))
    root = plant_tree(tmp_path / "blind", tree, {"proc/self/mountinfo": None, "proc/self/cgroup": None})
    assert read_limits(root) == expected


def test_a_machine_without_proc_and_sys_has_no_limits(tmp_path: Path) -> None:
    nothing = CgroupLimits(version=0, cpuset=None, quota=None, memory=None, used=None, room=None, swap=True)
    assert read_limits(tmp_path) == nothing


def test_invalid_limits_are_no_limit(tmp_path: Path) -> None:
    mounts = "a b - \n- cgroup2\n1 2 3 / /x - cgroup\n\n - \n"
    write_files(tmp_path, {"proc/self/cgroup": "::\n0:\nx\n", "proc/self/mountinfo": mounts})
    assert read_limits(tmp_path).version == 0


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), (" 1 , 2-2\n", {1, 2}), ("3-1", set()), ("a-b,4,-", {4})],
)
def test_cpu_list(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("0", 0), ("max", None), ("-1", None), ("", None), ("²", None)]
)
def test_number(text: str, value: int | None) -> None:
    assert parse_number(text) == value
