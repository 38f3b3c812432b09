"""The doctor finds each planted fault, with the command that fixes it, and is quiet on a healthy machine."""

from __future__ import annotations

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
from tests.cli.doctor.machine_snapshot import describe_image, snapshot
from tests.cli.doctor.planted_faults import FAULTS, environ
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
    assert EXIT[find_worst_level(faults)] == {"warn": 0, "fail": 9}[level]


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
        [sys.executable, "-m", "drivetrain", "doctor"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode in (EXIT[Level.WARN], EXIT[Level.FAIL]), process.stderr
    levels = {row[1]: row[0] for line in process.stdout.splitlines() if len(row := line.split()) > 2}
    assert levels["TORCH_CPU_BACKEND"] == "warn"
    assert {"libraries", "memory", "/dev/shm", "clock"} <= levels.keys()
    assert (tmp_path / "runs").exists() is False


def test_a_mac_is_told_that_its_gpu_is_not_used(tmp_path: Path) -> None:
    gpu_texts = [
        finding.text for finding in list_findings(snapshot(tmp_path, "macbook-m2", {})) if finding.name == "gpu"
    ]
    assert gpu_texts == [hardware.NO_MPS]
