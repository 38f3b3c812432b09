"""Containers with too little room: 1 MB of shared memory, 64 MB for all runs. No bus error, no traceback, no lost run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.system.run_files import list_checkpoints
from drivetrain.training.checkpoints import manifest
from tests.docker.conftest import Run
from tests.faults import small_job
from tests.messages import says
from tests.newest_checkpoint import load_latest
from tests.paths import ROOT

CODE = ("-v", f"{ROOT}/runtime:/opt/drivetrain/runtime:ro")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = small_job.write_job(tmp_path, epochs="3")
    (tmp_path / "runs").mkdir()
    for folder in (tmp_path, tmp_path / "runs"):
        folder.chmod(0o777)
    return path


def train(container: Run, job: Path, *options: str, settings: tuple[str, ...] = ()) -> tuple[int, str]:
    flags = [word for text in settings for word in ("--set", text)]
    done = container(
        "train", "/job/small.yaml", "--runs", "/job/runs", *flags, options=(*CODE, "-v", f"{job.parent}:/job", *options)
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode not in (-7, 135, 139)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.cgroup
@pytest.mark.parametrize("size", ["1m", "64m"])
def test_little_shared_memory(container: Run, job: Path, size: str) -> None:
    """By itself it trains without workers; workers that it has no room for are refused, and those that fit are used."""
    code, log = train(container, job, f"--shm-size={size}")
    assert code == 0, log
    code, log = train(
        container, job, f"--shm-size={size}", settings=("optimize.loader_workers=64", "data.image_size=256")
    )
    assert code == 2, log
    assert f"/dev/shm has {size[:-1]} MiB, enough for" in log
    code, log = train(container, job, f"--shm-size={size}", settings=("optimize.loader_workers=2", "name=two"))
    assert code == (2 if size == "1m" else 0), log


@pytest.mark.nightly
def test_shared_memory_that_cannot_be_written(container: Run, job: Path) -> None:
    read_only = "--tmpfs=/dev/shm:ro,size=64m"
    code, log = train(container, job, read_only, settings=("optimize.loader_workers=1",))
    assert code == 2, log
    assert "/dev/shm has 0 MiB, enough for 0 workers" in log
    code, log = train(container, job, read_only)
    assert code == 0, log


@pytest.fixture
def small_storage(job: Path) -> Iterator[Path]:
    """runs/ on a tmpfs of 64 MB."""
    runs = job.parent / "runs"
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "tmpfs", str(runs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield runs
    subprocess.run(["umount", "-l", str(runs)], check=False)


@pytest.mark.nightly
def test_disk_with_64_mb_for_runs(container: Run, job: Path, small_storage: Path) -> None:
    """A small network trains; one whose checkpoints do not fit twice goes on training and ends with 7; one that does
    not fit at all ends with 7 before its first step. What was saved verifies."""
    code, log = train(container, job)
    assert code == 0, log
    code, log = train(container, job, settings=("model.width=90", "name=middle"))
    assert code == 7, log
    assert says(log, "storage-checkpoint-saved-training")
    assert "epoch 3/3" in log
    assert "free disk space" in log
    for path in list_checkpoints(small_storage / "middle-001" / "checkpoints"):
        assert manifest.verify(path) is None
    assert load_latest(small_storage / "middle-001" / "checkpoints")[0] is not None
    assert small_job.leftovers(small_storage / "middle-001") == []
    code, log = train(container, job, settings=("model.width=128", "name=large"))
    assert code == 7, log
    assert "epoch 1/3" not in log
