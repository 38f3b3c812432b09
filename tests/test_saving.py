"""Saving under trouble: a disk that fills up and empties, a kill in the middle, damaged files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime import checkpoint, saving
from runtime.errors import StorageError
from runtime.metrics import Metrics
from runtime.numerics import NotFinite
from tests import tiny

ROOT = Path(__file__).parent.parent
FULL = OSError(28, "No space left on device")


def saver(folder: Path) -> saving.Saver:
    made = tiny.assembled(folder, tiny.job())
    made.metrics = Metrics(folder)
    return saving.Saver(made)


def test_background_saves_hold_the_weights_of_their_step(tmp_path: Path) -> None:
    kept = saver(tmp_path)
    model = kept.run.model
    first = {name: value.clone() for name, value in model.state_dict().items()}
    kept.periodic()
    assert kept.thread is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    kept.run.counters.step = 1
    kept.final()
    loaded = checkpoint.load(tmp_path / "checkpoints" / "step-0")
    assert all(torch.equal(value, loaded.tensors["model"][name]) for name, value in first.items())
    kept.run.metrics.close()  # type: ignore[union-attr]


def test_without_room_for_a_copy_it_saves_in_the_foreground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = saver(tmp_path)
    monkeypatch.setattr(saving, "ROOM", 1e12)
    kept.periodic()
    assert kept.thread is None
    assert [p.name for p in checkpoint.steps(tmp_path / "checkpoints")] == ["step-0"]
    kept.run.metrics.close()  # type: ignore[union-attr]


def test_a_full_disk_is_an_event_and_saving_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = saver(tmp_path)
    kept.kind = "epoch"
    kept.final()
    real, full = checkpoint.write_tensors, [True]

    def write(path: Path, tensors: checkpoint.Tensors) -> None:
        if full[0]:
            path.write_bytes(b"part")
            raise FULL
        real(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", write)
    kept.run.counters.step = 7
    kept.run.watch.update({"validation/accuracy": 1.0}, 7, 0)
    kept.best({"metrics": {}, "confusion": {}})
    kept.periodic()
    folder = tmp_path / "checkpoints"
    assert [p.name for p in folder.iterdir()] == ["step-0"]
    assert capsys.readouterr().out.count("not saved, training goes on") == 1
    with pytest.raises(StorageError, match="No space left on device"):
        kept.final()
    full[0] = False
    kept.periodic()
    assert sorted(p.name for p in folder.iterdir()) == ["best-7", "step-0", "step-7"]
    assert "saved again" in capsys.readouterr().out
    kept.run.metrics.close()  # type: ignore[union-attr]


def test_nothing_that_is_not_finite_is_written(tmp_path: Path) -> None:
    kept = saver(tmp_path)
    next(kept.run.model.parameters()).data[0] = float("inf")
    with pytest.raises(NotFinite, match="not finite: features"):
        kept.final()
    assert not (tmp_path / "checkpoints").exists()
    kept.run.metrics.close()  # type: ignore[union-attr]


def test_rows_wait_for_room_and_are_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Metrics(tmp_path)
    kept.write(1, 0, {"train/loss": 1.0})
    kept.flush()
    real = os.pwrite

    def full(handle: int, data: bytes, offset: int) -> int:
        if offset > kept.size:
            raise FULL
        return real(handle, data[:5], offset)

    monkeypatch.setattr(os, "pwrite", full)
    kept.write(2, 0, {"train/loss": 2.0})
    kept.flush()
    assert kept.trouble == "No space left on device"
    assert kept.path.read_text() == '{"step": 1, "epoch": 0, "train/loss": 1.0}\n'
    monkeypatch.setattr(os, "pwrite", real)
    kept.write(3, 0, {"train/loss": 3.0})
    kept.close()
    assert [line[9] for line in kept.path.read_text().splitlines()] == ["1", "2", "3"]


SAVE = """
import sys, torch
from pathlib import Path
from runtime import checkpoint
folder = Path(sys.argv[1])
tensors = {"model": {"w": torch.full((50,), float(sys.argv[2]))}, "optimizer": {"w/m": torch.ones(50)}}
checkpoint.save(folder, f"step-{sys.argv[2]}", tensors, {"watch": {"best": {"best": None}}})
checkpoint.prune(folder, 1, None)
"""


def strace(folder: Path, *inject: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SAVE, str(folder), "2"]
    options = [word for text in inject for word in ("-e", text)]
    if "error" in inject[-1]:  # quicker; a signal does not come through it
        options.append("--seccomp-bpf")
    return subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", *options, *command], cwd=ROOT, check=False,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip


needs_strace = pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v strace"], capture_output=True, check=False).returncode != 0,
    reason="strace is not installed",
)


@needs_strace
@pytest.mark.parametrize("call", ["fsync", "rename", "unlinkat", "rmdir", "mkdir"])
def test_killed_at_any_call_of_a_save_a_verified_checkpoint_loads(tmp_path: Path, call: str) -> None:
    """SIGKILL at the first, second, ... call of a kind, until the save gets through."""
    for number in range(1, 40):
        folder = tmp_path / str(number)
        checkpoint.save(folder, "step-1", {"model": {"w": torch.ones(50)}}, {"watch": {"best": {"best": None}}})
        done = strace(folder, f"trace={call}", f"inject={call}:signal=SIGKILL:when={number}")
        loaded, passed = checkpoint.latest(folder)
        assert loaded is not None
        assert loaded.path.name in ("step-1", "step-2")
        assert passed == []
        if done.returncode == 0:
            assert number > 1
            assert [p.name for p in checkpoint.steps(folder)] == ["step-2"]
            return
    pytest.fail("the save never got through")


@needs_strace
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_an_error_at_any_call_leaves_nothing_behind(tmp_path: Path, call: str) -> None:
    """One kind of error after the other; tests/faults has every kind at every write of a whole run."""
    for number in range(1, 20):
        error = ("ENOSPC", "EIO", "EROFS")[number % 3]
        folder = tmp_path / str(number)
        checkpoint.save(folder, "step-1", {"model": {"w": torch.ones(50)}}, {"watch": {"best": {"best": None}}})
        done = strace(folder, f"trace={call}", f"inject={call}:error={error}:when={number}")
        loaded, passed = checkpoint.latest(folder)
        assert loaded is not None
        assert passed == []
        if done.returncode == 0:
            assert number > 1
            return
        assert "StorageError" in done.stderr or call == "rename"
    pytest.fail("the save never got through")
