"""`launch` on a real terminal (tmux): the live view of the container is painted there, resized, and stopped by Ctrl-C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.launch.compose_project import KEEP
from tests.docker.conftest import SLOWER
from tests.docker.launched_checkout import inspect_trainer, project, run_command
from tests.messages import says_only

__all__ = ["project"]
SOCKET = f"drivetrain-{os.getpid()}"
LAUNCH = "{python} -m drivetrain launch jobs/digits.yaml --set train.epochs=2000 --set optimize.measure=off; echo EXIT $?; sleep 600"
EXPECTED = ("epoch ", "loss ", "accuracy ", "speed ", "CPU ", "memory ")


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", "-L", SOCKET, *arguments], capture_output=True, text=True, check=True).stdout


def read_screen() -> list[str]:
    return tmux("capture-pane", "-p").rstrip().splitlines()


def until(condition: Callable[[list[str]], bool]) -> list[str]:
    """The screen as soon as it shows what is wanted."""
    end = time.monotonic() + 200 * SLOWER
    while time.monotonic() < end:
        if condition(lines := read_screen()):
            return lines
        time.sleep(0.5)
    raise AssertionError("\n".join(read_screen()))


def dashboard(lines: list[str]) -> list[str]:
    """The picture at the bottom, complete; else empty."""
    starts = [number for number, line in enumerate(lines) if line.startswith("digits  image-classification")]
    picture = lines[starts[-1] :] if starts else []
    return picture if all(any(line.startswith(word) for line in picture) for word in EXPECTED) else []


@pytest.fixture
def terminal(project: Path) -> Iterator[Path]:
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    yield project
    subprocess.run(["tmux", "-L", SOCKET, "kill-server"], capture_output=True, check=False)


def test_the_live_view_in_a_terminal(terminal: Path) -> None:
    line = LAUNCH.format(python=sys.executable)
    where = f"cd {terminal}; export PYTHONPATH=$PWD/runtime:$PWD; unset NO_COLOR; {line}"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "30", where)
    narrow = dashboard(until(lambda seen: bool(dashboard(seen))))
    assert 70 < max(map(len, narrow)) < 80
    assert "running" in narrow[0]
    tmux("resize-window", "-x", "120", "-y", "40")
    wide = dashboard(until(lambda seen: max(map(len, dashboard(seen)), default=0) > 90))
    assert max(map(len, wide)) <= 100
    tmux("send-keys", "C-c")
    last = until(lambda seen: any(line.startswith("EXIT") for line in seen))
    assert last[-1] == "EXIT 75"
    assert any(line.startswith("stopped by SIGINT (Ctrl-C) after step") for line in last)
    assert says_only(last, "run-same-command-again")
    assert dashboard(last), "the last picture stays"


@pytest.mark.nightly
def test_plain_lines_in_a_pipe(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP, "1")
    done = run_command(
        project, "launch", "jobs/digits.yaml", "--set", "train.epochs=1", "--set", "optimize.measure=off"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 1/1  validation/loss" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert inspect_trainer(project, "digits")["Config"]["Tty"] is False
