"""The command `bench memory`: its rows, its table, and its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import drivetrain
from drivetrain.errors import DrivetrainError
from drivetrain.tuning.processes import memory
from drivetrain.tuning.processes.memory import MemoryRow
from tests.paths import IMPORTS

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.2}
model: {name: resnet18, width: 4}
train: {epochs: 1, batch_size: 16}
optimize: {cpu_threads: 1}
"""
MIB = 1 << 20


def test_the_command_writes_numbers_and_no_run(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    np.savez(
        tmp_path / "images.npz", images=np.random.default_rng(0).integers(0, 255, (60, 16, 16), np.uint8), labels=labels
    )
    (tmp_path / "tiny.yaml").write_text(TEXT)
    out = tmp_path / "runs" / "bench-memory-tiny"
    command = [sys.executable, "-m", "drivetrain", "bench", "memory", "tiny.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads((out / "memory.json").read_text())
    assert [(row["micro_batch"], row["recomputed"]) for row in stored["rows"]] == [
        (size, recomputed) for recomputed in (False, True) for size in (2, 4, 8, 16)
    ]
    assert all(100 * MIB < row["measured"] < stored["ceiling"] for row in stored["rows"])
    assert "recomputed" in done.stdout
    assert "available" in done.stdout
    assert not (out / "state.json").exists()
    assert list((tmp_path / "runs").iterdir()) == [out]


@pytest.mark.nightly
def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(
        tmp_path / "images.npz",
        images=np.random.default_rng(0).integers(0, 255, (60, 8, 8), np.uint8),
        labels=np.arange(60) % 3,
    )
    (tmp_path / "tiny.yaml").write_text(TEXT.replace("resnet18", "small-cnn"))
    profile = drivetrain.memory_for(tmp_path / "tiny.yaml", ["train.batch_size=4"])
    assert {row["micro_batch"] for row in profile["rows"]} == {2, 4}
    with pytest.raises(DrivetrainError, match=r"train.batch: unknown key"):
        drivetrain.memory_for(tmp_path / "tiny.yaml", ["train.batch=4"])


def test_from_python_in_a_folder_with_a_module_of_somebody_else(tmp_path: Path) -> None:
    """The message is that of the command, which fails before it writes a file."""
    (tmp_path / "yaml.py").write_text("open('canary', 'w').close()")
    (tmp_path / "tiny.yaml").write_text(TEXT)
    program = "import drivetrain; drivetrain.memory_for('tiny.yaml')"
    command = [sys.executable, "-P", "-c", program]
    environment = {**os.environ, "PYTHONPATH": IMPORTS}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "DrivetrainError: " in done.stderr
    assert "images.npz" in done.stderr
    assert not (tmp_path / "canary").exists()


def test_the_table_without_anything_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [MemoryRow(8, False, 200 * MIB, 41.7), MemoryRow(16, False, None, None)]
    memory.report(rows, 250 * MIB, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["8", "200", "MiB", "42", "saved"]
    assert lines[2].split() == ["16", "does", "not", "fit", "-", "saved"]
    assert lines[3] == "250 MiB available"
    memory.report([MemoryRow(2, False, None, None)], 250 * MIB, tmp_path)
    assert json.loads((tmp_path / "memory.json").read_text())["rows"][0]["measured"] is None
