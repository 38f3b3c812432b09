"""Errors of disks at every call that writes: the run goes on or ends with exit 7, and always goes on from there."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import StorageError
from drivetrain.system.run_files import list_checkpoints
from drivetrain.tracking.tensorboard import TensorBoardWriter
from drivetrain.training import saver, train
from tests import tiny
from tests.faults import small_job
from tests.messages import begins_with, says
from tests.newest_checkpoint import load_latest

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
CALLS = ((os, "fsync"), (os, "pwrite"), (os, "rename"), (os, "replace"), (os, "mkdir"), (os, "open"), (io, "open"))
WRITES = os.O_WRONLY | os.O_RDWR


@contextlib.contextmanager
def fail_call(number: int, error: int) -> Iterator[list[str]]:
    """The n-th call of the main thread that writes below a run folder fails; yields the names of all such calls."""
    call_names: list[str] = []
    main = threading.current_thread()

    def shim(plain: Any, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            mode = arguments[1] if name == "open" and len(arguments) > 1 else None
            reads = name == "open" and (mode in (None, "r", "rb") or (isinstance(mode, int) and not mode & WRITES))
            if threading.current_thread() is not main or reads:
                return plain(*arguments, **keywords)
            call_names.append(name)
            if len(call_names) == number:
                raise OSError(error, os.strerror(error))
            return plain(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, shim(getattr(module, name), name))
        yield call_names


def conduct(folder: Path) -> None:
    """One attempt at the tiny job, from whatever checkpoint is there to result.json."""
    job = tiny.job(train="ema: 0.5")
    often = job.checkpoint.model_copy(update={"every": "3 steps"})
    tiny_run = tiny.assemble_run(folder, job.model_copy(update={"checkpoint": often}))
    train.train(tiny_run)


def read_final_files(folder: Path) -> dict[str, bytes]:
    files = {p.name: p.read_bytes() for p in small_job.last_checkpoint(folder).glob("*.safetensors")}
    files |= {f"model/{p.name}": p.read_bytes() for p in (folder / "model").glob("*.safetensors")}
    return files | {"metrics": (folder / "metrics.jsonl").read_bytes()}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed save is tried again after the next step."""
    monkeypatch.setattr(saver, "RETRY_SECONDS", 0.0)


@pytest.mark.nightly  # a minute; errors at some writes are in the tests below
def test_an_error_at_each_write_of_a_whole_run(tmp_path: Path) -> None:
    assert min(outcomes(tmp_path, 5).values()) > 3


@pytest.mark.nightly
def test_an_error_at_every_write_of_a_whole_run(tmp_path: Path) -> None:
    counts = outcomes(tmp_path, 1)
    print(
        f"an error at each of {sum(counts.values())} writes: {counts['done']} runs went on, {counts['ended']} ended with 7 and went on later"
    )


def outcomes(tmp_path: Path, stride: int) -> dict[str, int]:
    """An error at each n-th write of a run, one run after the other; how many went on and how many ended."""
    (tmp_path / "calm").mkdir()
    with fail_call(0, 0) as calls:
        conduct(tmp_path / "calm")
    calm_files = read_final_files(tmp_path / "calm")
    assert set(calls) == {name for _, name in CALLS}
    counts = {"done": 0, "ended": 0}
    for number in range(1, len(calls) + 1, stride):
        folder = tmp_path / str(number)
        folder.mkdir()
        error = ERRORS[number // stride % len(ERRORS)]
        storage_error = None
        try:
            with fail_call(number, error):
                conduct(folder)
            counts["done"] += 1
        except StorageError as caught:
            storage_error = caught
        if storage_error:
            counts["ended"] += 1
            assert os.strerror(error) in str(storage_error)
            if list_checkpoints(folder / "checkpoints"):
                assert load_latest(folder / "checkpoints")[0] is not None
            conduct(folder)
        assert read_final_files(folder) == calm_files, f"call {number}, {calls[number - 1]}, {os.strerror(error)}"
        assert small_job.leftovers(folder) == []
        shutil.rmtree(folder)
    return counts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 64 MB."""
    folder = tmp_path / "job"
    (folder / "runs").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder / "runs")]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder / "runs")], check=False)


def test_a_full_disk_ends_the_run_quickly_and_it_resumes_with_free_space(small_disk: Path) -> None:
    job = small_job.write_job(small_disk, epochs="3")
    filler = small_disk / "runs" / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    filler.write_bytes(filler.read_bytes()[: -(96 << 10)])
    text = small_job.finish(job, expected=7)
    assert says(text, "space-left-device")
    assert says(text, "free-disk-space-choose")
    filler.unlink()
    small_job.finish(job)
    assert small_job.ledger_faults(job) == []


def test_a_read_only_folder_ends_the_run_at_once(small_disk: Path) -> None:
    job = small_job.write_job(small_disk, epochs="3")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk / "runs")], check=True)
    text = small_job.finish(job, expected=7)
    assert "Read-only file system" in text
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk / "runs")], check=True)
    small_job.finish(job)


def test_a_disk_that_fills_up_is_an_event(tmp_path: Path) -> None:
    """A thread of TensorBoard's printed a traceback into the log of a run that went on."""
    reports: list[str] = []
    board = TensorBoardWriter(tmp_path / "tensorboard", None, reports.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        board.put(1, {f"a number with a long name {number}": 1.0 for number in range(10_000)})
        board.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(reports) == 1
    assert begins_with(reports[0], "tensorboard-logging-stopped-training")
