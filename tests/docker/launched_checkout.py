"""A checkout whose command line launches containers, from a host without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.clone import copy_project
from tests.docker.conftest import inspect_container

NO_TORCH = "import sys; from drivetrain.cli import main as cli; from drivetrain.launch import image_contents as inside; inside.find_spec = lambda name: None; sys.exit(cli.main(sys.argv[1:]))"


def copy_checkout(folder: Path) -> Path:
    """A clone of today's files."""
    copy_project(folder)
    (folder / "runs").chmod(0o777)
    return folder


@pytest.fixture
def project(cpu_image: str, tmp_path: Path) -> Iterator[Path]:
    folder = copy_checkout(tmp_path / "one" / "drivetrain")
    yield folder
    remove_containers(folder)


def list_containers(folder: Path) -> list[str]:
    """The ids of those of a checkout."""
    line = ["docker", "ps", "-aq", "--filter", f"name=^{project_name(folder)}-"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()


def remove_containers(folder: Path) -> None:
    """Remove the containers of a checkout."""
    for container in list_containers(folder):
        subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=False)


def project_name(folder: Path, **options: Any) -> str:
    line = [str(folder / "scripts" / "env"), "project"]
    return subprocess.run(line, capture_output=True, text=True, check=True, **options).stdout.strip()


def run_command(folder: Path, *arguments: str, working_folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line of a checkout, in `working_folder` if it is not the checkout, on a host without torch."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}/runtime:{folder}"}
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *arguments],
        cwd=working_folder or folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def inspect_trainer(folder: Path, job: str) -> dict[str, Any]:
    return inspect_container(f"{project_name(folder)}-{job}-trainer-1")
