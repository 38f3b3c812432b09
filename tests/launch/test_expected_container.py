"""The plan on a host without torch: that of the container in which `train` runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.hardware import facts
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.launch import container_limits, expected_container
from tests.installed_packages import pretend_installed
from tests.messages import begins_with, ends_with, says, says_only
from tests.paths import ROOT

GIB = 1 << 30
DIGITS = str(ROOT / "jobs" / "digits.yaml")
Limited = Callable[[str], Job]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without torch, whose .env says nothing."""
    pretend_installed(monkeypatch, lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(container_limits, "PROJECT", Path("/nowhere"))
    for name in ("DRIVETRAIN_IMAGE", "DRIVETRAIN_MEMORY", "DRIVETRAIN_SHM", "DRIVETRAIN_CPUS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_limited_job(tmp_path: Path) -> Limited:
    def make(limits: str) -> Job:
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
        path = tmp_path / "job.yaml"
        path.write_text(f"name: a\ntask: tabular-regression\ndata: {{train: a.csv, target: y}}\nlimits: {limits}\n")
        return job_spec.load(path)

    return make


def machine(name: str) -> facts.Hardware:
    return facts.read_hardware(ROOT / "tests" / "machines" / f"{name}.json")


def test_the_container_has_the_limits_and_libraries_of_the_image(no_torch: None, make_limited_job: Limited) -> None:
    container, line = expected_container.expect_hardware(machine("laptop"), make_limited_job("{}"))
    assert says_only(line, "torch-installed-plan-container")
    host = machine("laptop")
    assert (container.cpu.budget, container.cpu.quota) == (host.cpu.host - 1, 15.0)
    assert (container.memory.limit, container.memory.swap) == (host.memory.host - 4 * GIB >> 20 << 20, False)
    assert (container.storage.shm, container.storage.cache) == (256 << 20, "/cache/compile")
    assert (container.place, container.image, container.compiler) == ("docker", "cpu", "/usr/bin/g++")
    assert container.libraries.iomp5
    assert container.libraries.tcmalloc
    assert container.torch
    assert f"torch=={container.torch.version} " in (ROOT / "docker" / "requirements-cpu.txt").read_text()


def test_limits_come_from_the_job_then_from_env(
    no_torch: None, make_limited_job: Limited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_limits, "PROJECT", tmp_path)
    (tmp_path / ".env").write_text("DRIVETRAIN_MEMORY=3g\nDRIVETRAIN_SHM=64m\n")
    host = machine("laptop")
    container, _ = expected_container.expect_hardware(host, make_limited_job("{}"))
    assert (container.memory.limit, container.storage.shm) == (3 * GIB, 64 << 20)
    container, _ = expected_container.expect_hardware(host, make_limited_job("{cpus: 1, memory: 2g, shm: 128m}"))
    assert (container.cpu.budget, container.memory.limit, container.storage.shm) == (1, 2 * GIB, 128 << 20)


def test_a_gpu_is_planned_for_as_launch_uses_it(no_torch: None, make_limited_job: Limited) -> None:
    host = machine("t4")
    container, line = expected_container.expect_hardware(host, make_limited_job("{}"))
    assert (container.image, container.gpus, container.storage.shm) == ("legacy", host.gpus, 2 * GIB)
    assert (container.cpu.budget, container.memory.limit) == (host.cpu.host - 1, host.memory.host - 2 * GIB >> 20 << 20)
    assert container.libraries.iomp5 is None
    assert says(line, "set-none-shows-plan", "limits.gpus")


def test_an_arm_image_has_no_iomp5(no_torch: None, make_limited_job: Limited) -> None:
    container, _ = expected_container.expect_hardware(machine("graviton3"), make_limited_job("{}"))
    assert container.libraries.iomp5 is None


def test_with_torch_the_plan_is_of_this_machine(make_limited_job: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, lambda name: object())
    host = machine("laptop")
    assert expected_container.expect_hardware(host, make_limited_job("{}")) == (host, "")


def test_without_a_docker_client_the_plan_is_of_the_host(
    no_torch: None, make_limited_job: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    host = machine("laptop")
    container, line = expected_container.expect_hardware(host, make_limited_job("{}"))
    assert container == host
    assert ends_with(line, "plan-host-without-container")


def test_plan_says_so_first_and_json_stays_json(no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", DIGITS, "--set", "limits.gpus=none"]) == 0
    stdout = capsys.readouterr().out
    assert begins_with(stdout, "torch-installed-plan-container-image")
    assert "requested but not enforced" not in stdout
    assert main.main(["plan", DIGITS, "--set", "limits.gpus=none", "--json"]) == 0
    stdout, stderr = capsys.readouterr()
    rows = {row["name"]: row["value"] for row in json.loads(stdout)["decisions"]}
    assert rows["allocator"] == "tcmalloc"
    assert begins_with(stderr, "torch-is-not-installed-here")
