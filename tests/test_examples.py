"""A user's own jobs beside the examples are none of the tests' business."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import examples
from tests.paths import ROOT

READERS = (
    "tests/job_spec/test_load_job.py",
    "tests/job_spec/test_fuzzed_specs.py",
    "tests/test_samples.py",
)
ASKED = "examples_are_valid or every_example_job or hundred_fuzzed"


def test_every_example_is_there() -> None:
    assert [path for path in examples.JOBS if not path.is_file()] == []


@pytest.mark.nightly
def test_jobs_of_the_users_own_fail_no_test(tmp_path: Path) -> None:
    """One with mistakes, one whose data is not there, in a copy of the project."""
    for name in ("runtime", "tests", "jobs", "docs", "docker", "README.md", "Makefile", "pyproject.toml"):
        one, two = ROOT / name, tmp_path / name
        shutil.copytree(one, two, ignore=shutil.ignore_patterns("__pycache__")) if one.is_dir() else shutil.copy(
            one, two
        )
    (tmp_path / "jobs" / "mine.yaml").write_text("name: [mine\n")
    (tmp_path / "jobs" / "other.yaml").write_text(
        "name: other\ntask: text-classification\ndata: {train: ~/reports.csv, text: said, labels: kind}\n"
        "model: {source: transformers, name: models/beto}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *READERS, "-k", ASKED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/runtime:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(examples.JOBS) + len(examples.NAMES) + 1} passed" in done.stdout
