"""A clone of the project, as a user of compose has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import TAG, read_engine_fact
from tests.paths import ROOT


@pytest.fixture
def project(cpu_image: str, tmp_path: Path) -> Iterator[Path]:
    """A fresh copy of the project as a clone has it."""
    folder = tmp_path / "project"
    copy_project(folder)
    few = "DRIVETRAIN_CPUS=1\n" if count_cpus() < 2 else ""
    (folder / ".env").write_text(
        f"COMPOSE_PROJECT_NAME=drivetrain-test-{os.getpid()}\nDRIVETRAIN_TAG={TAG}\n{few}"
    )  # scripts/env writes it
    tmp_path.chmod(0o755)
    yield folder
    subprocess.run(["docker", "compose", "down", "--timeout", "5"], cwd=folder, capture_output=True, check=False)


def count_cpus() -> int:
    """The default of compose, and what an engine that has fewer accepts."""
    return min(2, int(read_engine_fact("NCPU")))


def copy_project(folder: Path) -> None:
    """The files of a clone."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
