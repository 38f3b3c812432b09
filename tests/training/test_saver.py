"""Saving under trouble: a disk that fills up and empties, a kill in the middle, damaged files."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drivetrain.errors import StorageError
from drivetrain.models import safetensors_file
from drivetrain.system.run_files import list_checkpoints
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import saver as saving
from drivetrain.training.checkpoints import checkpoint, manifest
from drivetrain.training.nonfinite import NotFinite
from tests import tiny
from tests.messages import get_message, saying, says, says_only
from tests.newest_checkpoint import load_latest
from tests.paths import ROOT
from tests.system_calls import needs_strace

FULL = OSError(28, "No space left on device")


def test_a_background_save_has_the_weights_of_its_step(tmp_path: Path) -> None:
    saver = tiny.make_saver(tmp_path)
    model = saver.run.model
    weights_before = {name: value.clone() for name, value in model.state_dict().items()}
    saver.save_periodically()
    assert saver.background_save is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    saver.run.counters.step = 1
    saver.save_final()
    loaded = checkpoint.load(tmp_path / "checkpoints" / "step-0")
    assert all(torch.equal(value, loaded.tensors["model"][name]) for name, value in weights_before.items())
    saver.run.metrics.close()


def test_without_memory_for_a_copy_it_saves_in_the_foreground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = tiny.make_saver(tmp_path)
    monkeypatch.setattr(saving, "COPY_FACTOR", 1e12)
    saver.save_periodically()
    assert saver.background_save is None
    assert [p.name for p in list_checkpoints(tmp_path / "checkpoints")] == ["step-0"]
    saver.run.metrics.close()


def test_a_full_disk_is_an_event_and_saving_continues_with_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = tiny.make_saver(tmp_path)
    saver.kind = "epoch"
    saver.save_final()
    original_write, disk_full = safetensors_file.write, [True]

    def write(path: Path, tensors: safetensors_file.Tensors) -> None:
        if disk_full[0]:
            path.write_bytes(b"part")
            raise FULL
        original_write(path, tensors)

    monkeypatch.setattr(safetensors_file, "write", write)
    saver.run.counters.step = 7
    saver.run.best_metric.update({"validation/accuracy": 1.0}, 7, 0)
    saver.save_best({"metrics": {}, "confusion": {}})
    saver.save_periodically()
    folder = tmp_path / "checkpoints"
    assert [p.name for p in folder.iterdir()] == ["step-0"]
    assert capsys.readouterr().out.count(get_message("checkpoint-saved-training-continues")) == 1
    with pytest.raises(StorageError, check=saying("space-left-device")):
        saver.save_final()
    disk_full[0] = False
    saver.save_periodically()
    assert sorted(p.name for p in folder.iterdir()) == ["best-7", "step-0", "step-7"]
    assert says(capsys.readouterr().out, "checkpoints-saved-again")
    saver.run.metrics.close()


def test_nothing_that_is_not_finite_is_written(tmp_path: Path) -> None:
    saver = tiny.make_saver(tmp_path)
    next(saver.run.model.parameters()).data[0] = float("inf")
    with pytest.raises(NotFinite, match="not finite: features"):
        saver.save_final()
    assert not (tmp_path / "checkpoints").exists()
    saver.run.metrics.close()


def test_rows_wait_for_disk_space_and_are_never_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_log = MetricsLog(tmp_path)
    metrics_log.write(1, 0, {"train/loss": 1.0})
    metrics_log.flush()
    original_pwrite = os.pwrite

    def full(handle: int, data: bytes, offset: int) -> int:
        if offset > metrics_log.size:
            raise FULL
        return original_pwrite(handle, data[:5], offset)

    monkeypatch.setattr(os, "pwrite", full)
    metrics_log.write(2, 0, {"train/loss": 2.0})
    metrics_log.flush()
    assert says_only(metrics_log.problem, "space-left-device")
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "epoch": 0, "train/loss": 1.0}\n'
    monkeypatch.setattr(os, "pwrite", original_pwrite)
    metrics_log.write(3, 0, {"train/loss": 3.0})
    metrics_log.close()
    assert [line[9] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == ["1", "2", "3"]


SERVER = """
import os, signal, torch
from pathlib import Path
from drivetrain.training.checkpoints import checkpoint

torch.set_num_threads(1)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
tensors = {"model": {"w": torch.full((50,), 2.0)}, "optimizer": {"w/m": torch.ones(50)}}
while folder := os.read(0, 4096).decode():
    child = os.fork()
    if child == 0:
        os.write(1, f"{os.getpid()}\\n".encode())
        signal.sigwait({signal.SIGUSR1})
        try:
            checkpoint.save(Path(folder), "step-2", tensors, {"watch": {"best": {"best": None}}})
            checkpoint.prune(Path(folder), 1, None)
        except Exception as error:
            os._exit(7 if type(error).__name__ == "StorageError" else 8)
        os._exit(0)
    os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
"""
CALLS = "trace=%file,%desc"


class Saves:
    """Processes that save, one after the other, each watched by strace from just before to its end."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __call__(self, folder: Path, *options: str) -> int:
        """Save step 2 next to step 1; return how the process ended."""
        checkpoint.save(folder, "step-1", {"model": {"w": torch.ones(50)}}, {"watch": {"best": {"best": None}}})
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(str(folder).encode())
        child = int(self.server.stdout.readline())
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-p", str(child), *options], stderr=subprocess.DEVNULL)
        status = Path(f"/proc/{child}/status")
        while "TracerPid:\t0" in status.read_text():
            assert tracer.poll() is None, "strace cannot attach to a process here"
            time.sleep(0.005)
        os.kill(child, signal.SIGUSR1)
        code = int(self.server.stdout.readline())
        tracer.wait()
        return code


@pytest.fixture(scope="module")
def save_server() -> Iterator[Saves]:
    save_process = Saves()
    with save_process.server:  # whose end closes both pipes; the server goes with its input
        yield save_process


@pytest.fixture(scope="module")
def calls(save_server: Saves, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often a save makes each call of the file system."""
    folder = tmp_path_factory.mktemp("calls")
    assert save_server(folder / "calm", "-e", CALLS, "-o", str(folder / "record")) == 0
    lines = (folder / "record").read_text().splitlines()
    return Counter(line.split("(")[0].split()[-1] for line in lines if "(" in line and "resumed" not in line)


@pytest.mark.slow
@needs_strace
def test_killed_at_any_call_of_a_save_a_verified_checkpoint_loads(
    tmp_path: Path, save_server: Saves, calls: Counter[str]
) -> None:
    """SIGKILL at the first, second, ... last call of every kind that a save makes of the file system."""
    assert {"openat", "write", "fsync", "mkdir", "unlinkat", "rmdir", "rename"} <= set(calls)
    kills = 0
    for kind, number in [(name, n) for name in sorted(calls) for n in range(1, calls[name] + 1)]:
        folder = tmp_path / f"{kind}-{number}"
        code = save_server(
            folder, "-e", f"trace={kind}", "-e", f"inject={kind}:signal=SIGKILL:when={number}", "-o", "/dev/null"
        )
        loaded, passed = load_latest(folder)
        assert loaded is not None
        assert loaded.path.name in ("step-1", "step-2")
        assert passed == []
        assert code in (-9, 0)
        kills += code == -9
    print(f"killed at {kills} calls of {len(calls)} kinds")
    assert kills > 0.9 * calls.total()


@needs_strace
@pytest.mark.parametrize("call", ["fsync", "rename", "write", "mkdir"])
def test_an_error_at_any_call_leaves_nothing_behind(
    tmp_path: Path, save_server: Saves, calls: Counter[str], call: str
) -> None:
    """One kind of error after the other; tests/faults has every kind at every write of a whole run."""
    codes = []
    for number in range(1, calls[call] + 2):
        error = ("ENOSPC", "EIO", "EROFS", "EDQUOT")[number % 4]
        folder = tmp_path / str(number)
        codes.append(
            save_server(
                folder, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}", "-o", "/dev/null"
            )
        )
        loaded, passed = load_latest(folder)
        assert loaded is not None
        assert passed == []
        assert not list(folder.glob(".tmp-step-2*"))
    assert set(codes) <= {0, 7}
    assert 7 in codes
    assert codes[-1] == 0


class Off(BaseException):
    """The power goes."""


@pytest.mark.parametrize("renames_last", [True, False], ids=["renames reach the disk", "renames are lost"])
def test_power_loss_at_any_moment_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames_last: bool
) -> None:
    """Unsynced data is lost: files are empty, renames undone. A verified checkpoint still loads."""
    tensors = {"model": {"w": torch.ones(50)}, "optimizer": {"w/m": torch.ones(50)}}
    state = {"watch": {"best": {"best": None}}}
    for number in range(1, 100):
        folder = tmp_path / str(number)
        checkpoint.save(folder, "step-1", tensors, state)
        disk = _Disk(number)
        with monkeypatch.context() as patch:
            disk.watch(patch)
            try:
                checkpoint.save(folder, "step-2", tensors, state)
                checkpoint.prune(folder, 1, None)
            except Off:
                disk.lose(folder, renames_last)
        loaded, _ = load_latest(folder)
        assert loaded is not None
        assert loaded.path.name in ("step-1", "step-2")
        if disk.left > 0:
            assert number > 10
            return
    pytest.fail("the save never got through")


class _Disk:
    """Which files are on the disk and which renames are; the power goes before the n-th of these calls."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.synced: set[int] = set()
        self.renamed: list[tuple[Path, Path]] = []

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        fsync, rename, replace, rmtree = os.fsync, os.rename, os.replace, shutil.rmtree

        def spend() -> None:
            self.left -= 1
            if self.left == 0:
                raise Off

        def note_sync(handle: int) -> None:
            spend()
            self.synced.add(os.fstat(handle).st_ino)
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                self.renamed.clear()
            fsync(handle)

        def note_rename(rename_call: Callable[..., None], source: Path, target: Path) -> None:
            spend()
            rename_call(source, target)
            self.renamed.append((Path(source), Path(target)))

        def make_absolute(names: tuple[Path, Path], folders: dict[str, int]) -> list[Path]:
            """The paths of two names in open folders."""
            handles = (folders.get("src_dir_fd"), folders.get("dst_dir_fd"))
            folder_paths = [
                Path() if folder_handle is None else Path(os.readlink(f"/proc/self/fd/{folder_handle}"))
                for folder_handle in handles
            ]
            return [folder_path / name for folder_path, name in zip(folder_paths, names, strict=True)]

        def note_removal(path: Path, **options: Any) -> None:
            if Path(path).exists() and self.left > 0:
                spend()
            rmtree(path, **options)

        patch.setattr(os, "fsync", note_sync)
        patch.setattr(os, "rename", lambda source, target, **named: note_rename(rename, source, target))
        patch.setattr(
            os,
            "replace",
            lambda source, target, **folders: note_rename(replace, *make_absolute((source, target), folders)),
        )
        patch.setattr(shutil, "rmtree", note_removal)

    def lose(self, folder: Path, renames_last: bool) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.synced and "step-1" not in str(path):
                path.write_bytes(b"")
        for one, two in [] if renames_last else reversed(self.renamed):
            if two.exists() and not one.exists():
                two.rename(one)


def test_a_run_that_rolled_back_past_a_damaged_checkpoint_keeps_new_ones(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(sections="checkpoint: {keep: 1}"))
    run.metrics = MetricsLog(tmp_path)
    saver = saving.Saver(run)
    for step in (10, 40):
        run.counters.step = step
        saver.save_final()
    (tmp_path / "checkpoints" / "step-40" / "model.safetensors").write_bytes(b"")
    run.counters.step = 30
    assert manifest.verify(saver.save_final()) is None
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-30"]
    run.metrics.close()


@pytest.mark.parametrize("missing_bytes", [1, 0], ids=["a byte short", "enough"])
def test_a_disk_that_is_too_small_is_reported_at_the_start(
    tmp_path: Path, missing_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint has no moments yet, so the third one is measured."""
    run = tiny.assemble_run(tmp_path, tiny.job(train="ema: 0.5", sections="checkpoint: {keep: 2}"))
    weight_bytes = 2 * sum(value.numel() * value.element_size() for value in run.model.state_dict().values())
    trainable_bytes = sum(p.numel() * p.element_size() for p in run.model.parameters())
    needed_bytes = 3 * (weight_bytes + 2 * trainable_bytes) + 2 * weight_bytes
    run.metrics = MetricsLog(tmp_path)
    saver = saving.Saver(run)
    saver.save_final()
    used_bytes = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=needed_bytes - used_bytes - missing_bytes)
    )
    saver.warn_if_disk_small()
    run.metrics.close()
    events = tmp_path / "events.jsonl"
    event_text = events.read_text() if events.exists() else ""
    assert (
        "the run needs" in event_text and "3 checkpoints of" in event_text and "checkpoint.keep: 1" in event_text
    ) == bool(missing_bytes)
    assert bool(event_text) == bool(missing_bytes)
