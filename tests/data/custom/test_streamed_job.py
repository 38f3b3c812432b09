"""jobs/streamed.yaml: tar files of a folder and of a bucket, in one process and in two, killed and resumed; its cache is bounded."""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import small_job
from tests.object_store import BUCKET
from tests.paths import ROOT
from tests.supervisor.remote_copy.fake_run import faulty_store, open_store
from tests.supervisor.tiny_run import command
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

FAST = ("train.epochs=2", "optimize.measure=off", "optimize.cpu_threads=1", "baselines=off", "checkpoint.every=4 steps")
CACHE_MB = 1
TARS = 12
"""They take 2.5 MB."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The example in a folder of its own, with its data."""
    jobs = tmp_path / "jobs"
    shutil.copytree(ROOT / "jobs" / "streamed", jobs / "streamed", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "jobs" / "streamed.yaml", jobs)
    samples = runpy.run_path(str(ROOT / "jobs" / "samples" / "tars.py"))
    samples["main"](jobs / "data" / "streamed", TARS)
    return jobs / "streamed.yaml"


@pytest.fixture
def bucket(s3: str, job: Path) -> Iterator[tuple[str, ...]]:
    """The training data of the job in a bucket, and the options of a run that reads it there."""
    with faulty_store(s3), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ALLOW_HTTP", "true")
        for path in (job.parent / "data" / "streamed" / "train").iterdir():
            open_store("train").put(path.name, path.read_bytes())
            path.unlink()
        yield (f"data.arguments.train=s3://{BUCKET}/train", f"data.arguments.cache_mb={CACHE_MB}")


def make_command(job: Path, name: str, *settings: str) -> list[str]:
    return command(job, *(part for setting in (*FAST, *settings, f"name={name}") for part in ("--set", setting)))


def finish(job: Path, name: str, *settings: str) -> Path:
    """Train to the end; returns the run folder."""
    done = subprocess.run(make_command(job, name, *settings), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return job.parent / "runs" / f"{name}-001"


def kill_after(job: Path, name: str, rows: int, *settings: str) -> None:
    """Train until some more rows are written, then kill all its processes."""
    metrics = job.parent / "runs" / f"{name}-001" / "metrics.jsonl"
    count = lambda: len(metrics.read_text().splitlines()) if metrics.exists() else 0  # noqa: E731
    before = count()
    running = subprocess.Popen(
        make_command(job, name, *settings), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: count() >= before + rows or running.poll() is not None)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def compare_killed(job: Path, kills: int, *settings: str) -> list[str]:
    """Train once without and once with kills; what differs."""
    uninterrupted = finish(job, "whole", *settings)
    draw = random.Random(0)
    for _ in range(kills):
        kill_after(job, "killed", draw.randrange(1, 8), *settings)
    return small_job.differences(uninterrupted, finish(job, "killed", *settings))


def try_processes_and_kills(processes: int) -> pytest.MarkDecorator:
    """Try so many processes with one kill, and nightly one and two of them with ten.

    Where the files come from and which process reads which of them are decided apart: one of the two reads a folder.
    """
    often = [pytest.param(number, 10, marks=pytest.mark.nightly) for number in (1, 2)]
    return pytest.mark.parametrize(("processes", "kills"), [(processes, 1), *often])


@try_processes_and_kills(1)
def test_killed_and_resumed_from_a_folder(job: Path, processes: int, kills: int) -> None:
    assert compare_killed(job, kills, f"limits.processes={processes}") == []


@try_processes_and_kills(2)
def test_killed_and_resumed_from_a_bucket(job: Path, bucket: tuple[str, ...], processes: int, kills: int) -> None:
    cache, sizes, ended = job.parent / "data" / "streamed" / "cache", [], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            sizes.append(count_bytes(cache))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        differences = compare_killed(job, kills, *bucket, f"limits.processes={processes}")
    finally:
        ended.set()
        watcher.join()
    assert differences == []
    assert 0 < max(sizes) <= CACHE_MB * 2**20


def count_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
