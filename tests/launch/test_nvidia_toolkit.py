"""The NVIDIA container toolkit: what is missing, and the engine's messages about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import DeviceError, DrivetrainError
from drivetrain.hardware import detect
from drivetrain.launch import container, docker_engine, nvidia_toolkit
from tests.launch.specs import HOST
from tests.messages import saying, says_only
from tests.nvml_double import RTX, Nvml
from tests.paths import ROOT

CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker"

CDI = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}
BY_CDI = {"DRIVETRAIN_GPU_DRIVER": "cdi", "DRIVETRAIN_GPU_DEVICES": "nvidia.com/gpu=all"}
BY_RUNTIME = {"DRIVETRAIN_GPU_DRIVER": "nvidia", "DRIVETRAIN_GPU_DEVICES": "all"}


@pytest.mark.parametrize(
    ("info", "programs", "expected"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, (), BY_RUNTIME),
        ({"Runtimes": {"runc": {}}}, ("nvidia-container-runtime-hook",), BY_RUNTIME),
        (CDI, ("nvidia-ctk",), BY_CDI),
        # Both: a daemon-reload of systemd takes the GPU from what the hook has started, not from CDI's.
        (
            CDI | {"Runtimes": {"runc": {}, "nvidia": {}}},
            ("nvidia-container-runtime-hook",),
            BY_CDI,
        ),
        (
            {"Runtimes": None, "DiscoveredDevices": None},
            ("nvidia-ctk",),
            "the NVIDIA container toolkit is installed, but the engine is not configured for it",
        ),
        ({"DiscoveredDevices": [{"ID": "example.com/net=0"}]}, (), "the NVIDIA container toolkit is missing"),
    ],
)
def test_the_container_toolkit(info: dict[str, Any], programs: tuple[str, ...], expected: dict[str, str] | str) -> None:
    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in programs else None

    if isinstance(expected, dict):
        assert nvidia_toolkit.find(info, which) == expected
        return
    with pytest.raises(DeviceError) as caught:
        nvidia_toolkit.find(info, which)
    assert says_only(caught.value.given, "docker-engine-give-container", expected)
    assert caught.value.action.endswith(CONFIGURE)
    assert caught.value.exit_code == 9


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
            "the Docker engine was started before the NVIDIA container toolkit was installed",
        ),
        (
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
            "the NVIDIA container toolkit could not provide the GPU:\nnvidia-container-cli: initialization error: nvml error",
        ),
    ],
)
def test_the_engines_messages_are_explained(message: str, expected: str) -> None:
    explanation = nvidia_toolkit.explain_refusal(message)
    assert explanation is not None
    assert explanation.given.startswith(expected)


def test_other_messages_are_left_to_the_engine() -> None:
    assert nvidia_toolkit.explain_refusal("no space left on device") is None


def test_a_missing_toolkit_ends_the_launch_with_9(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Engine:
        def info(self) -> dict[str, Any]:
            return {**HOST, "Runtimes": {"runc": {}}}

    host = detect.detect(tmp_path, tmp_path, environ={}, mask={0}, nvml=Nvml([RTX], "580.95.05"))
    monkeypatch.setattr(container, "detect", lambda runs: host)
    monkeypatch.setattr(docker_engine, "connect", Engine)
    monkeypatch.setattr(nvidia_toolkit.find, "__defaults__", (lambda name: None,))
    with pytest.raises(DrivetrainError, check=saying("nvidia-container-toolkit-missing")) as caught:
        container.launch(container.LaunchRequest(ROOT / "jobs/digits.yaml", device="gpu"))
    assert caught.value.exit_code == 9
