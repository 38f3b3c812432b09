"""Why no Docker engine can be used, and what to do about it."""

from __future__ import annotations

import os

import pytest

from drivetrain.cli import main
from drivetrain.launch import container, docker_engine
from tests.messages import says
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("message", "cause", "cure"),
    [
        (
            "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))",
            "one is running, but this user has no permission to use it",
            "sudo usermod -aG docker $USER, then log in again",
        ),
        (
            "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
            "none is running",
            "`make engine`",
        ),
        (
            "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
            "none is listening",
            "`make engine`",
        ),
    ],
)
def test_why_no_engine_can_be_used(message: str, cause: str, cure: str) -> None:
    assert docker_engine.explain_connection_error(message) == docker_engine.EngineMissing(cause, cure)


def test_without_permission_the_advice_is_the_docker_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        docker_engine,
        "connect",
        lambda: docker_engine.explain_connection_error("PermissionError(13, 'Permission denied')"),
    )
    monkeypatch.setattr(container, "_train_natively", lambda *_: 0)
    assert main.main(["launch", str(ROOT / "jobs" / "digits.yaml")]) == 0
    output = capsys.readouterr().out
    assert says(output, "docker-engine-used-running")
    assert "sudo usermod -aG docker $USER" in output
    assert "make engine" not in output


def test_another_default_platform_is_dropped_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compose and the builder obey it, and looked for images of another processor."""
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", "linux/arm64")
    monkeypatch.setattr("shutil.which", lambda name: None)
    docker_engine.connect()
    assert "DOCKER_DEFAULT_PLATFORM" not in os.environ
    assert says("".join(capsys.readouterr()), "default-platform-ignored", "linux/arm64")
