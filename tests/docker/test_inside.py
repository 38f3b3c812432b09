"""A command that needs torch, called where there is none: it runs in the image, on the files that are here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.job_spec.load_job import load
from drivetrain.launch import container_limits, docker_engine, run_in_image
from drivetrain.launch.project import PROJECT


def test_sample_data_are_made_in_the_image(
    cpu_image: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files lie where they were asked for and belong to the caller; what the command prints comes through."""
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None)
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)
    monkeypatch.chdir(PROJECT)
    folder = Path("build") / f"inside-{os.getpid()}"
    try:
        assert main.main(["sample", "table", str(folder), "--size", "50"]) == 0
        file = next(folder.glob("*.parquet"))
        assert file.stat().st_uid == os.getuid()
        assert capfd.readouterr().out.splitlines()[-1].startswith(f"{folder}: ")
        assert main.main(["sample", "table", str(folder), "--size", "50"]) == 2
        assert f"{folder} is not empty" in capfd.readouterr().err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_plan_of_a_host_without_torch_is_that_of_its_container(
    cpu_image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None)
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)
    monkeypatch.chdir(PROJECT)
    arguments = ["plan", "jobs/digits.yaml", "--set", "limits.gpus=none", "--json"]
    assert main.main(arguments) == 0
    variables = container_limits.variables(docker_engine.connect().info(), load(arguments[1]))
    # A new volume is writable, as that of a run is; what earlier runs measured is in another one.
    line = ["docker", "compose", "run", "--rm", "-T", "--no-deps", "--volume", "/cache/compile"]
    # Other tests run beside it, and see no bf16.
    line += ["--env", "DRIVETRAIN_NEIGHBORS", "--env", "ONEDNN_MAX_CPU_ISA", "trainer", *arguments]
    names = {"COMPOSE_PROJECT_NAME": f"drivetrain-inside-{os.getpid()}"}
    container = subprocess.run(
        line, cwd=PROJECT, env={**os.environ, **variables, **names}, capture_output=True, text=True, check=True
    )
    assert decisions(capsys.readouterr().out) == decisions(container.stdout)


def decisions(plan: str) -> list[Any]:
    rows: list[Any] = json.loads(plan)["decisions"]
    return rows
