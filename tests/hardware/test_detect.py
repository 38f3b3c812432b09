"""The facts as a whole, from recorded trees and from the machine that runs the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.hardware import facts
from drivetrain.hardware.detect import detect
from tests.file_trees import plant_tree, write_files

HOSTS = "92 72 254:0 /var/lib/engine/hosts /etc/hosts rw,relatime - ext4 /dev/vda rw\n"
GIB = 2**30


def test_a_container_under_version_2(tmp_path: Path) -> None:
    root = plant_tree(tmp_path, "v2-container")
    machine = detect(tmp_path, root, environ={"HOME": "/root", "DRIVETRAIN_IMAGE": "cpu"}, mask={0, 1})
    assert (machine.name, machine.place, machine.cgroup, machine.image) == ("2-CPU container", "docker", 2, "cpu")
    assert (machine.cpu.quota, machine.cpu.budget) == (2.0, 2)
    memory = machine.memory
    assert (memory.host, memory.limit, memory.used) == (8144660 * 1024, 4 * GIB, 708608)
    assert (memory.available, memory.swap) == (4 * GIB - 708608, False)
    assert (machine.gpus, machine.gpu_trouble, machine.assumed) == ((), None, ())


def test_a_machine_without_limits(tmp_path: Path) -> None:
    root = plant_tree(tmp_path, "none")
    machine = detect(tmp_path, root, environ={}, mask={0, 1, 2, 3})
    assert (machine.name, machine.place, machine.cgroup, machine.image) == ("4-CPU host", "host", 0, None)
    memory, total, free = machine.memory, 995892 * 1024, int(_meminfo(root)["MemAvailable"]) * 1024
    assert (memory.host, memory.limit, memory.used, memory.available) == (total, None, total - free, free)


def test_a_limit_above_the_memory_of_the_machine_is_none(tmp_path: Path) -> None:
    """Seen on a rented GPU machine: 128 GiB of 125.9 GiB."""
    files = {"proc/meminfo": "MemTotal: 2048000 kB\nMemAvailable: 1024000 kB\nSwapTotal: 4 kB\n"}
    memory = detect(tmp_path, plant_tree(tmp_path, "v1-limited", files), mask={0}).memory
    assert (memory.limit, memory.used, memory.available) == (None, 1024000 * 1024, 1024000 * 1024)


def test_a_limit_above_what_the_machine_has_left(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: 4096000 kB\nMemAvailable: 1024000 kB\nSwapTotal: 4 kB\n"}
    memory = detect(tmp_path, plant_tree(tmp_path, "v1-limited", files), mask={0}).memory
    assert (memory.limit, memory.available, memory.swap) == (2 * GIB, 1024000 * 1024, False)


@pytest.mark.parametrize(
    ("text", "host", "available", "swap"),
    [
        ("MemTotal: 100 kB\nMemFree: 20 kB\nCached: 30 kB\nSwapTotal: 5 kB\n", 102400, 51200, True),
        ("MemTotal:\nMemFree: x kB\n", 0, 0, False),
        ("", 0, 0, False),
    ],
)
def test_meminfo_of_old_kernels_and_garbage(tmp_path: Path, text: str, host: int, available: int, swap: bool) -> None:
    memory = detect(tmp_path, write_files(tmp_path, {"proc/meminfo": text}), mask={0}).memory
    assert (memory.host, memory.available, memory.swap) == (host, available, swap)


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, "host"),
        ({".dockerenv": "", "proc/self/mountinfo": HOSTS}, {}, "docker"),
        ({".dockerenv": "", "proc/1/cgroup": "4:memory:/docker/5f2a\n"}, {}, "docker"),
        ({"run/.containerenv": "", "proc/self/mountinfo": HOSTS}, {}, "podman"),
        ({"proc/self/mountinfo": HOSTS}, {}, "container"),
        ({"proc/1/cgroup": "0::/system.slice/containerd-5f2a.scope\n"}, {}, "container"),
        ({"run/systemd/container": "lxc\n"}, {}, "container"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, "host"),
        # A virtual machine whose disk was an image once.
        ({".dockerenv": "", "proc/1/cgroup": "0::/\n"}, {}, "host"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    ],
)
def test_place(tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: str) -> None:
    assert detect(tmp_path, write_files(tmp_path, files), environ=environ, mask={0}).place == expected


@pytest.mark.parametrize(
    ("release", "wsl2"),
    [("5.15.167.4-microsoft-standard-WSL2\n", True), ("6.8.0-1015-azure\n", False), (None, False)],
)
def test_wsl2_is_known_by_its_kernel(tmp_path: Path, release: str | None, wsl2: bool) -> None:
    root = plant_tree(tmp_path, "none", {"proc/sys/kernel/osrelease": release} if release else {})
    hardware = detect(tmp_path, root, environ={}, mask={0})
    assert hardware.wsl2 is wsl2
    assert ("wsl2" in hardware.to_json()) is wsl2
    assert facts.from_json(hardware.to_json()) == hardware


def test_an_empty_machine_raises_nothing(tmp_path: Path) -> None:
    machine = detect(tmp_path / "runs", tmp_path / "nowhere", environ={}, mask={0})
    assert (machine.cpu.budget, machine.memory.limit, machine.storage.shm) == (1, None, None)


@pytest.mark.host
def test_this_machine_as_the_json_file_gives_it_back(tmp_path: Path) -> None:
    machine = detect(tmp_path)
    assert machine.cpu.affinity == len(os.sched_getaffinity(0))
    assert 1 <= machine.cpu.budget <= machine.cpu.affinity <= machine.cpu.host
    assert 0 < machine.memory.available <= machine.memory.host
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(machine.to_json()))
    assert facts.read_hardware(file) == machine


def test_detect_loads_no_torch_and_no_nvml_without_a_driver(tmp_path: Path) -> None:
    """Planted: a root without a driver, whatever the machine under the test has."""
    code = (
        "import sys; from pathlib import Path; from drivetrain.hardware.detect import detect\n"
        f"detect(Path('.'), Path({str(tmp_path)!r}), environ={{}})\n"
        "print(sorted({'torch', 'pynvml', 'numpy', 'pydantic', 'rich', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _meminfo(root: Path) -> dict[str, str]:
    lines = (root / "proc/meminfo").read_text().splitlines()
    return {line.split(":")[0]: line.split()[1] for line in lines}
