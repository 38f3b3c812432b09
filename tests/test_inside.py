"""Commands that run in the image where this environment has no torch: when, how hardened, and what they may see."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from runtime import cli, inside, launch
from runtime.errors import DeviceError

HERE = inside.PROJECT


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "find_spec", lambda name: None)
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> list[list[str]]:
    """What would be run, with an engine of two CPUs that has the image."""
    found: list[list[str]] = []

    class Engine:
        def info(self) -> dict[str, int]:
            return {"NCPU": 2, "MemTotal": 8 << 30}

    def run(line: list[str], **others: Any) -> subprocess.CompletedProcess[str]:
        found.append(line)
        return subprocess.CompletedProcess(line, 3)

    monkeypatch.setattr(launch, "connect", Engine)
    monkeypatch.setattr(launch, "build_if_missing", lambda engine, word: None)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(HERE)
    return found


def after(line: list[str], option: str) -> list[str]:
    return [line[i + 1] for i, word in enumerate(line) if word == option]


def test_only_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    assert {command for command in cli.COMMANDS if inside.wanted(command)} == set(inside.COMMANDS)
    monkeypatch.setenv("DRIVETRAIN_IMAGE", "cpu")
    assert not inside.wanted("predict")
    monkeypatch.delenv("DRIVETRAIN_IMAGE")
    monkeypatch.setattr(inside, "find_spec", lambda name: object())
    assert not inside.wanted("predict")


def test_a_prediction_in_the_image(ran: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code is ours; the project is where it is, other paths that are named can be read, all else is closed."""
    words = ["predict", "runs/parts-001", str(tmp_path), "--output", "answers.csv"]
    assert cli.main(words) == 3
    (line,) = ran
    assert line[:3] == ["docker", "run", "--rm"]
    assert line[-len(words) :] == words
    volumes = after(line, "--volume")
    assert volumes[:2] == [f"{HERE}:{HERE}", f"{tmp_path}:{tmp_path}:ro"]
    assert [part.split(":")[1] for part in volumes[2:]] == ["/cache/compile", "/cache/huggingface"]
    assert (after(line, "--workdir"), after(line, "--network"), after(line, "--cap-drop")) == (
        [str(HERE)],
        ["none"],
        ["ALL"],
    )
    assert {"--read-only", "--init"} <= set(line)
    assert capsys.readouterr().out == ""  # it is the table of answers alone
    assert after(line, "--memory") == after(line, "--memory-swap") == ["4g"]


def test_a_job_brings_its_limits_and_its_folder(ran: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    spec = tmp_path / "job.yaml"
    spec.write_text("name: a\ntask: image-classification\ndata: {train: photos}\nlimits: {cpus: 1, memory: 2g}\n")
    cli.main(["find-lr", str(spec), "--set", "limits.shm=64m"])
    (line,) = ran
    assert [after(line, key) for key in ("--cpus", "--memory", "--shm-size")] == [["1"], ["2g"], ["64m"]]
    assert f"{tmp_path}:{tmp_path}:ro" in after(line, "--volume")
    assert "--network" not in line  # weights may come from the hub


def test_outside_of_the_project(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "runs/parts-001"]) == DeviceError.exit_code
    assert f"cd {HERE}, or `make setup`" in capsys.readouterr().err
    assert ran == []


def test_no_engine_either(monkeypatch: pytest.MonkeyPatch, no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "connect", lambda: "none is running")
    assert cli.main(["compare", "runs/a-001", "runs/a-002"]) == DeviceError.exit_code
    told = capsys.readouterr().err
    assert "`compare` needs torch, which is not installed here, and no Docker engine answers: none is running" in told
    assert "`make setup`, or `make engine`" in told
