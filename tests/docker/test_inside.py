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
from drivetrain.launch import container_limits, docker_engine
from drivetrain.launch.project import PROJECT
from tests.installed_packages import pretend_installed


def test_samples_are_made_in_the_image(cpu_image: str, tmp_path: Path) -> None:
    """With the command of the Makefile, in a checkout whose Python has no libraries: the files belong to the caller."""
    recipe = subprocess.run(
        ["make", "-n", "-s", "-o", ".venv/host", "samples", "ARGS=table --size 50"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shutil.copytree(PROJECT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__", "table"))
    (tmp_path / "scripts").mkdir()
    for name, text in (("image", "true"), ("env", f"echo {cpu_image}")):
        (tmp_path / "scripts" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "scripts" / name).chmod(0o755)
    command = recipe.replace(".venv/bin/python", "false").replace("$PWD", str(tmp_path))
    made = subprocess.run(["sh", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    file = tmp_path / "jobs" / "data" / "table" / "train.parquet"
    assert file.stat().st_uid == os.getuid()
    assert made.stdout.startswith("/workspace/jobs/data/table: 2 files, ")


def test_the_plan_of_a_host_without_torch_is_that_of_its_container(
    cpu_image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_installed(monkeypatch, lambda name: None)
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
