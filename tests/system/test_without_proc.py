"""The replacements for what macOS does not have: /proc, prctl, posix_fallocate, the clock of the boot."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain.system import files
from drivetrain.training import phase_timer
from tests.paths import ROOT

ORPHAN = """
import ctypes, os, sys, time
ctypes.CDLL = lambda name: object()
from drivetrain.system import signals
child = os.fork()
if child == 0:
    time.sleep(0.2)  # the parent of this test's process must still live
    signals.die_with_parent(os.getppid())
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(1)
os._exit(0)
"""


def test_an_orphan_ends_where_the_kernel_does_not_end_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=30
    )
    assert done.stdout.strip().isdigit()  # the pipe closed in time, which the orphan would have held for a minute


def test_space_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    path, size = tmp_path / "cache", (1 << 20) + 5
    with path.open("wb") as file:
        files.reserve_space(file, size, tmp_path)
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 >= size


def test_the_age_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = phase_timer.process_seconds()
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert phase_timer.process_seconds() == pytest.approx(expected, abs=2)


def test_prctl_is_there_on_linux() -> None:
    """Else the test of the orphan would not replace anything."""
    assert hasattr(ctypes.CDLL(None), "prctl")
