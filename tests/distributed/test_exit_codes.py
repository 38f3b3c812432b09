"""The exit code of a run of several processes: that of the process whose end explains the others."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from drivetrain.distributed import local_processes


def start_child(how: str, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    code = f"import os, sys, time; time.sleep({seconds}); {how}"
    return subprocess.Popen([sys.executable, "-c", code])


def test_ending_the_leader_does_not_hide_why_another_process_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "EXIT_TIMEOUT", 0.2)
    dead = start_child("os.kill(os.getpid(), 11)")
    dead.wait()
    assert local_processes.wait_for_end(start_child("pass", 60.0), [dead]) == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("leader", "follower", "code"),
    [
        ("sys.exit(8)", "os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), 6)", "sys.exit(8)", -signal.SIGABRT),
        ("os.kill(os.getpid(), 6)", "os.kill(os.getpid(), 9)", 8),
        ("pass", "sys.exit(1)", 0),
        ("sys.exit(75)", "sys.exit(1)", 75),
        ("sys.exit(3)", "sys.exit(1)", 3),
        ("sys.exit(1)", "sys.exit(1)", 8),
        ("sys.exit(1)", "sys.exit(75)", 75),
    ],
)
def test_the_end_of_several_processes(leader: str, follower: str, code: int) -> None:
    dead = start_child(follower)
    dead.wait()
    assert local_processes.wait_for_end(start_child(leader), [dead]) == code
