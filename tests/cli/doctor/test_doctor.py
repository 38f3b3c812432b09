"""The doctor finds each planted fault, with the command that fixes it, and is quiet on a healthy machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli.doctor import docker_engine
from drivetrain.cli.doctor.doctor import list_findings, render
from drivetrain.cli.doctor.finding import EXIT, Finding, Level, find_worst_level
from drivetrain.cli.doctor.snapshot import Snapshot, is_port_taken, read_disk_space, run
from drivetrain.hardware import facts as hardware
from drivetrain.launch import image_contents
from drivetrain.system.console import open_console
from tests.cli.doctor.machine_snapshot import LOADED, POOL, describe_image, snapshot
from tests.messages import get_message, omits, says
from tests.paths import IMPORTS


def list_faults(machine_snapshot: Snapshot) -> list[Finding]:
    return [finding for finding in list_findings(machine_snapshot) if finding.level is not Level.OK]


@pytest.mark.parametrize("machine", ["laptop", "h200", "codespace-2core-cgroup2", "macbook-m2", "graviton3"])
def test_no_findings_on_a_healthy_machine(tmp_path: Path, machine: str) -> None:
    healthy = snapshot(tmp_path, machine, {})
    assert list_faults(healthy) == []
    assert EXIT[find_worst_level(list_findings(healthy))] == 0


def test_a_machine_that_trains_in_containers_alone_is_healthy(tmp_path: Path) -> None:
    assert list_faults(snapshot(tmp_path, "laptop", {"torch": None}, loaded={})) == []


def test_images_that_no_job_here_uses_may_be_old(tmp_path: Path) -> None:
    old = {"answers": {"docker image": describe_image("2029-06-01T10:00:00Z")}}
    assert [finding.name for finding in list_faults(snapshot(tmp_path, "laptop", {}, **old))] == ["image cpu"]
    assert {finding.name for finding in list_faults(snapshot(tmp_path, "h200", {}, **old))} == {
        "image cpu",
        "image ampere",
        "image legacy",
    }


@pytest.mark.parametrize("contents", ["unknown", image_contents.combine_hashes(image_contents.hash_files("cpu"))])
def test_an_image_of_other_code_than_the_checkout(tmp_path: Path, contents: str) -> None:
    """No fault: the next start updates it."""
    facts = {"answers": {"docker image": describe_image(contents=contents)}}
    (image_finding,) = (
        finding for finding in list_findings(snapshot(tmp_path, "laptop", {}, **facts)) if finding.name == "image cpu"
    )
    assert image_finding.level is Level.OK
    assert (says if contents == "unknown" else omits)(image_finding.text, "code-checkout-next-start")


def test_containers_that_ended_are_counted(tmp_path: Path) -> None:
    """They stay, and nothing mentioned the command that removes them."""
    facts = {"answers": {"docker ps": "0a1b2c\n3d4e5f\n"}}
    container_findings = [
        finding for finding in list_findings(snapshot(tmp_path, "laptop", {}, **facts)) if finding.name == "containers"
    ]
    assert [(finding.level, finding.text) for finding in container_findings] == [
        (
            Level.OK,
            get_message("checkout-ended-kept-make", 2),
        )
    ]
    assert "containers" not in {finding.name for finding in list_findings(snapshot(tmp_path, "laptop", {}))}


def environ(**values: str) -> dict[str, Any]:
    return {"environ": values}


QUOTA = {"cpu.quota": 0.5, "cpu.budget": 1}
TWO = {"cpu.quota": 2.0, "cpu.budget": 2, "cpu.cpuset": None}
FAULTS: list[tuple[str, str, dict[str, Any], dict[str, Any], str, str, str]] = [
    # machine, line, changed facts, changed snapshot, level, what it says, what fixes it
    ("laptop", "CPU", QUOTA, environ(), "warn", "the quota is 0.5 of a CPU", "DRIVETRAIN_CPUS"),
    ("graviton2", "CPU", {"cpu.emulated": True}, {}, "warn", "all of it is emulated", "DOCKER_DEFAULT_PLATFORM"),
    (
        "laptop",
        "DOCKER_DEFAULT_PLATFORM",
        {},
        environ(DOCKER_DEFAULT_PLATFORM="linux/arm64"),
        "warn",
        "=linux/arm64 makes `docker compose` ask",
        "unset DOCKER_DEFAULT_PLATFORM",
    ),
    (
        "laptop",
        "OMP_NUM_THREADS",
        QUOTA,
        environ(OMP_NUM_THREADS="2"),
        "warn",
        "2 threads on 1 CPU",
        "unset OMP_NUM_THREADS",
    ),
    ("laptop", "MKL_NUM_THREADS", TWO, environ(MKL_NUM_THREADS="16"), "warn", "16 threads on 2 CPUs", "unset"),
    ("laptop", "/dev/shm", {"storage.shm": 64 << 20}, {}, "warn", "64 MiB, the Docker default", "--shm-size 256m"),
    ("laptop", "/dev/shm", {"storage.shm": None}, {}, "warn", "does not exist", "limits.shm"),
    ("laptop", "disk", {}, {"disk": lambda path: (500 << 30, 25 << 30)}, "warn", "it is 95% full", "du -sh"),
    (
        "laptop",
        "disk",
        {},
        {"disk": lambda path: (500 << 30, 100 << 20)},
        "fail",
        "not enough for checkpoints",
        "prune",
    ),
    ("laptop", "runs", {}, {"uid": 4321}, "fail", "belongs to uid", "sudo chown -R 4321"),
    ("laptop", "compile cache", {"storage.cache_exec": False}, {}, "warn", "mounted noexec", "TORCHINDUCTOR_CACHE_DIR"),
    ("laptop", "compile cache", {"storage.cache_writable": False}, {}, "warn", "is not writable", "a writable folder"),
    ("laptop", "temporary folder", {"storage.tmp_exec": False}, {}, "warn", "noexec", "TMPDIR"),
    ("laptop", "compiler", {"compiler": None}, {}, "warn", "no C++ compiler", "apt-get install g++ python3-dev"),
    (
        "laptop",
        "torch",
        {"torch": None},
        {"loaded": {}, "answers": {"docker version": None}},
        "warn",
        "not installed, and no Docker engine is available",
        "make setup",
    ),
    ("laptop", "torch", {}, {"loaded": {}}, "fail", "cannot be loaded", "import torch"),
    ("laptop", "memory", {"memory.available": 300 << 20}, {}, "fail", "300 MiB free", "limits.memory"),
    (
        "laptop",
        "OpenMP",
        {},
        {"loaded": LOADED | {"pools": [POOL, POOL | {"prefix": "libiomp5"}]}},
        "warn",
        "two runtimes in one process (libgomp, libiomp5)",
        "LD_PRELOAD",
    ),
    ("laptop", "TORCH_CPU_BACKEND", {}, environ(TORCH_CPU_BACKEND="onednn"), "warn", "has no effect", "unset"),
    ("laptop", "MKL_DEBUG_CPU_TYPE", {}, environ(MKL_DEBUG_CPU_TYPE="5"), "warn", "has no effect", "unset"),
    ("laptop", "OMP_PROC_BIND", TWO, environ(OMP_PROC_BIND="true"), "warn", "that other containers use", "unset"),
    ("laptop", "KMP_AFFINITY", TWO, environ(KMP_AFFINITY="granularity=fine"), "warn", "without a cpuset", "unset"),
    ("laptop", "OMP_WAIT_POLICY", TWO, environ(OMP_WAIT_POLICY="ACTIVE"), "warn", "use up the CPU quota", "unset"),
    (
        "laptop",
        "PYTORCH_CUDA_ALLOC_CONF",
        {},
        environ(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        "warn",
        "has no effect without a GPU",
        "unset",
    ),
    ("laptop", "KMP_DUPLICATE_LIB_OK", {}, environ(KMP_DUPLICATE_LIB_OK="TRUE"), "warn", "hides that two", "unset"),
    ("h200", "CUDA_VISIBLE_DEVICES", {}, environ(CUDA_VISIBLE_DEVICES=""), "warn", "hides every GPU", "unset"),
    (
        "h200",
        "NVIDIA_TF32_OVERRIDE",
        {},
        environ(NVIDIA_TF32_OVERRIDE="1"),
        "warn",
        "overrides the precision of the plan",
        "unset",
    ),
    ("laptop", "LD_PRELOAD", {}, environ(LD_PRELOAD="/nowhere/libiomp5.so"), "fail", "does not exist", "unset"),
    ("laptop", "TMPDIR", {}, environ(TMPDIR="/nowhere/tmp"), "fail", "does not exist", "mkdir -p /nowhere/tmp"),
    ("h200", "driver", {"gpus.driver": "470.256.02"}, {}, "fail", "the images need 525 or newer", "install driver"),
    (
        "h200",
        "driver",
        {"gpus.driver": "570.124.06"},
        {},
        "warn",
        "known vulnerabilities (CVE-2025-23277)",
        "570.172.8",
    ),
    ("h200", "driver", {"gpus.driver": "550.163.01"}, {}, "warn", "NVIDIA H200 must use the older image", "ampere"),
    ("h200", "gpu and image", {"image": "cpu"}, {"place": "docker"}, "fail", "this image is `cpu`", "image-ampere"),
    (
        "gtx1080",
        "gpu and image",
        {"image": "ampere"},
        {"place": "docker"},
        "fail",
        "this image is `ampere`, but the GPU needs `legacy`",
        "make image-legacy",
    ),
    ("h200", "gpu and image", {"torch.cuda": None}, {}, "fail", "is a CPU build", "make setup"),
    ("h200", "gpu and image", {}, {"loaded": LOADED | {"gpus": 0}}, "fail", "torch finds none", "CUDA_VISIBLE"),
    (
        "laptop",
        "gpu",
        {"gpu_trouble": "an NVIDIA card is here, its driver is not"},
        {},
        "fail",
        "its driver is not",
        "nvidia-smi",
    ),
    (
        "h200",
        "container toolkit",
        {},
        {"answers": {"nvidia-ctk --version": None}},
        "fail",
        "missing",
        "apt-get install",
    ),
    (
        "h200",
        "container toolkit",
        {},
        {"answers": {"nvidia-ctk --version": "CLI version 1.16.1"}},
        "fail",
        "CVE-2024-0132, CVE-2025-23359, CVE-2025-23266",
        "1.17.8",
    ),
    (
        "h200",
        "container toolkit",
        {},
        {"answers": {"nvidia-ctk --version": "CLI version 1.17.7"}},
        "fail",
        "1.17.7: a malicious image can take over this host (CVE-2025-23266)",
        "1.17.8",
    ),
    (
        "h200",
        "container toolkit",
        {},
        {"answers": {"nvidia-ctk --version": "CLI version 1.17.9"}},
        "warn",
        "1.17.9: `systemctl daemon-reload`, also by automatic updates, takes the GPU away from running containers",
        "1.18",
    ),
    (
        "laptop",
        "engine",
        {},
        {"answers": {"docker version": None, "docker --version": None}},
        "warn",
        "not installed: jobs train without a container",
        "make engine",
    ),
    (
        "laptop",
        "engine",
        {},
        {"answers": {"docker version": None, "stat -c": "root docker"}, "uid": 1000},
        "warn",
        "user 1000 has no permission to use it; its socket belongs to root docker",
        "usermod -aG docker",
    ),
    (
        "laptop",
        "engine",
        {},
        {"answers": {"docker version": json.dumps({"Server": {"Version": "19.03.15"}})}},
        "fail",
        "19.03.15; the images need 20.10",
        "make engine",
    ),
    ("laptop", "compose", {}, {"answers": {"docker compose": "v2.17.3"}}, "fail", "needs 2.20", "make engine"),
    ("laptop", "compose", {}, {"answers": {"docker compose": None}}, "fail", "missing", "make engine"),
    ("laptop", "buildx", {}, {"answers": {"docker buildx": None}}, "warn", "no image can be built", "make engine"),
    (
        "laptop",
        "image cpu",
        {},
        {"answers": {"docker image": describe_image("2029-06-01T10:00:00Z")}},
        "warn",
        "it lacks recent security fixes",
        "make image-cpu",
    ),
    (
        "laptop",
        "port 6006",
        {},
        {"port_taken": lambda port: port == 6006},
        "warn",
        "used by another program",
        "ss -l",
    ),
    (
        "laptop",
        "clock",
        {},
        {"now": 1e9},
        "warn",
        "2001-09-09 01:46 UTC is earlier than the date of these files",
        "set-ntp true",
    ),
]


@pytest.mark.parametrize(
    ("machine", "line", "facts", "parts", "level", "message", "fix"),
    FAULTS,
    ids=[f"{row[1]}: {row[5]}"[:60] for row in FAULTS],
)
def test_each_fault_is_found(
    tmp_path: Path,
    machine: str,
    line: str,
    facts: dict[str, Any],
    parts: dict[str, Any],
    level: str,
    message: str,
    fix: str,
) -> None:
    faults = [finding for finding in list_faults(snapshot(tmp_path, machine, facts, **parts)) if finding.name == line]
    assert len(faults) == 1, faults
    assert faults[0].level == level
    assert message in faults[0].text
    assert fix in faults[0].fix
    assert EXIT[find_worst_level(faults)] == {"warn": 1, "fail": 9}[level]


def test_harmless_settings_are_left_alone(tmp_path: Path) -> None:
    """Binding inside a cpuset of one's own, GPU settings on a GPU, threads within the budget."""
    cpu = environ(OMP_PROC_BIND="true", KMP_AFFINITY="granularity=fine", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")
    assert list_faults(snapshot(tmp_path, "laptop", {"cpu.quota": 2.0, "cpu.budget": 2, "cpu.cpuset": 2}, **cpu)) == []
    gpu = environ(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", CUDA_VISIBLE_DEVICES="0")
    assert list_faults(snapshot(tmp_path, "h200", {}, **gpu)) == []


def test_our_own_tensorboard_may_hold_the_port(tmp_path: Path) -> None:
    machine_snapshot = snapshot(tmp_path, "laptop", {}, port_taken=lambda port: True, answers={"docker ps": "5f2a"})
    assert list_faults(machine_snapshot) == []


def test_a_run_that_belongs_to_another(tmp_path: Path) -> None:
    """Real folders: runs/ is open to all, one run in it is not."""
    machine_snapshot = snapshot(tmp_path, "laptop", {}, uid=4321)
    machine_snapshot.runs.chmod(0o1777)
    (line,) = list_faults(machine_snapshot)
    assert line.text.startswith(f"{machine_snapshot.runs / 'digits-001'} belongs to uid {os.getuid()}")


def test_a_port_that_is_really_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert is_port_taken(port)
    assert not is_port_taken(port)


def test_real_commands_and_disks(tmp_path: Path) -> None:
    assert run(["no-such-command-here"]) is None
    assert run([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert run([sys.executable, "-c", "print(7)"]) == "7"
    total, free = read_disk_space(tmp_path / "not" / "there" / "yet")
    assert total >= free > 0


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v2.26.1-4", (2, 26, 1)),
        ("20.10.24+dfsg1", (20, 10, 24)),
        ("no digits", ()),
        ("CLI version 1.17.8", (1, 17, 8)),
    ],
)
def test_version_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert docker_engine.parse_version(text) == numbers


def test_the_table_shows_every_line_with_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_console().print(render(list_findings(snapshot(tmp_path, "laptop", {"compiler": None}))))
    output = capsys.readouterr().out
    assert "warn  compiler" in output
    assert "-> sudo apt-get install g++ python3-dev" in output
    assert "1 warning, 0 failures" in output
    assert "\x1b" not in output


def test_the_command_on_this_machine(tmp_path: Path) -> None:
    """Real, with a fault that costs nothing to plant."""
    environment = os.environ | {"TORCH_CPU_BACKEND": "onednn", "PYTHONPATH": IMPORTS}
    process = subprocess.run(
        [sys.executable, "-m", "drivetrain", "doctor", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    data = json.loads(process.stdout)
    assert process.returncode == EXIT[Level(data["worst"])]
    lines = {finding["name"]: finding for finding in data["findings"]}
    assert lines["TORCH_CPU_BACKEND"].keys() == {"name", "level", "text", "mend"}
    assert lines["TORCH_CPU_BACKEND"]["level"] == "warn"
    assert {"libraries", "memory", "/dev/shm", "clock"} <= lines.keys()
    assert (tmp_path / "runs").exists() is False


def test_a_mac_is_told_that_its_gpu_is_not_used(tmp_path: Path) -> None:
    gpu_texts = [
        finding.text for finding in list_findings(snapshot(tmp_path, "macbook-m2", {})) if finding.name == "gpu"
    ]
    assert gpu_texts == [hardware.NO_MPS]
