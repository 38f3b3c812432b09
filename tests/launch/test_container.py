"""Starting a training in a container, or without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.errors import SpecError
from drivetrain.hardware import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.launch import command_output, container
from tests.launch.specs import check_job
from tests.messages import saying
from tests.nvml_double import RTX, Nvml


@pytest.mark.parametrize(
    ("device", "limits", "has_gpu", "added"),
    [
        ("cpu", "{}", True, ["--set", "limits.gpus=none"]),
        ("cpu", "{}", False, []),
        ("cpu", "{gpus: [0]}", True, []),
        ("gpu", "{}", True, []),
    ],
)
def test_native_training_on_the_cpu_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, limits: str, has_gpu: bool, added: list[str]
) -> None:
    started: list[list[str]] = []
    machine: Hardware = detect.detect(tmp_path, tmp_path, environ={}, mask={0}, nvml=Nvml([RTX]) if has_gpu else None)
    monkeypatch.setattr(container, "detect", lambda runs: machine)
    monkeypatch.setattr(os, "execve", lambda program, command, environment: started.append(command))
    container._train_natively(
        container.LaunchRequest(Path("job.yaml"), device=device),
        check_job(limits),
        "cpu" if device == "cpu" else "ampere",
    )
    assert started[0][1:] == ["-m", "drivetrain", "train", "job.yaml", *added]


def test_options_of_train_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[container.LaunchRequest] = []
    monkeypatch.setattr(container, "launch", lambda request: requests.append(request) or 0)
    assert main.main(["launch", "job.yaml", "--trace", "--new", "--set", "train.epochs=2"]) == 0
    arguments = container._build_override(requests[0], check_job())["services"]["trainer"]["command"]
    assert arguments[2:] == ["--set", "train.epochs=2", "--new", "--trace"]


def test_a_run_to_extend_is_named_as_the_container_sees_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[container.LaunchRequest] = []
    monkeypatch.setattr(container, "launch", lambda request: requests.append(request) or 0)
    monkeypatch.setattr(container, "PROJECT", tmp_path)
    monkeypatch.setattr(container, "RUNS", tmp_path / "runs")
    for run_folder in ("runs/digits-001", "elsewhere/digits-001"):
        (tmp_path / run_folder).mkdir(parents=True)
        options = ["--extend", str(tmp_path / run_folder), "--trace"]
        assert main.main(["launch", "job.yaml", *options]) == 0
    arguments = container._build_override(requests[0], check_job())["services"]["trainer"]["command"]
    assert arguments[2:] == ["--trace", "--extend", "runs/digits-001"]
    with pytest.raises(SpecError, check=saying("container-see-folder", "elsewhere/digits-001")):
        container._build_override(requests[1], check_job())


def test_runs_elsewhere_leave_the_runs_of_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mounted in place of the project's runs/, they gave a job that starts from an earlier run another one's weights."""
    monkeypatch.setattr(container, "RUNS", tmp_path / "runs")
    services = container._build_override(container.LaunchRequest(Path("job.yaml")), check_job())["services"]
    target = str(tmp_path / "runs")
    assert services["trainer"]["command"][-2:] == ["--runs", target]
    for service in services.values():
        assert [(volume["source"], volume["target"], volume["read_only"]) for volume in service["volumes"]] == [
            (target, target, False)
        ]
    assert services["prepare"]["command"] == [target]


@pytest.mark.parametrize("target", ["/", "project"])
def test_runs_that_link_to_a_folder_of_others_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / target)
    monkeypatch.setattr(command_output, "PROJECT", tmp_path / "project")
    monkeypatch.setattr(command_output, "RUNS", tmp_path / "runs")
    with pytest.raises(SpecError, check=saying("runs-link-to", tmp_path / "runs")):
        command_output.make_runs_folder()
