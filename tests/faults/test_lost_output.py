"""Terminal, log or reader are lost, or the starter ignores signals: the run goes on to its end, and ends with 0."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import small_job
from tests.messages import says, says_only
from tests.paths import ROOT

LOST = "record evaluation:1"
"""When the loss happens, or a signal arrives."""


def ignore() -> None:
    """What `nohup` and the background of a shell do."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def start(
    job: Path, *options: str, fault: str = "", prepare: Callable[[], None] = ignore, **streams: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # type: ignore[call-overload]
        small_job.command(job, *options),
        cwd=ROOT,
        env={**small_job.make_environment(job), "FAULT": fault},
        start_new_session=True,
        preexec_fn=prepare,
        **streams,
    )


def check(job: Path, process: subprocess.Popen[bytes]) -> None:
    """The run has come to its end, with its report."""
    assert process.wait(timeout=120) == 0
    assert small_job.read_status(job) == "done"
    assert (small_job.newest_run(job) / "report.html").exists()


def events(job: Path) -> list[str]:
    path = small_job.newest_run(job) / "events.jsonl"
    return [row["text"] for row in small_job.read_rows(path.parent, path.name)] if path.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return small_job.write_job(tmp_path, epochs="4")


def test_a_closed_pipe(job: Path) -> None:
    """As after `| head`; with two processes."""
    process = start(job, "--set", "limits.processes=2", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    with process.stderr as stream:
        output = stream.read().decode()
    check(job, process)
    assert says(output, "output-stdout-written-broken")
    assert "Traceback" not in output
    assert says_only(events(job), "stdout-written-broken-pipe")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_the_log(job: Path) -> None:
    with open("/dev/full", "wb") as full:
        check(job, start(job, stdout=full.fileno(), stderr=full.fileno()))
    assert says(events(job), "space-left-device")


def test_closed_streams(job: Path) -> None:
    """As with `>&- 2>&-`: no file of the run takes their numbers."""

    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    check(job, start(job, prepare=close))
    assert b"epoch 1/4" not in b"".join(
        path.read_bytes() for path in small_job.newest_run(job).iterdir() if path.is_file()
    )


def test_ignored_signals_and_a_lost_terminal(job: Path) -> None:
    """Under `nohup`, with the live view on it."""
    controller, terminal = pty.openpty()

    def attach() -> None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        ignore()

    signals = f"{LOST}:SIGHUP@both+SIGINT@both"
    process = start(job, fault=signals, prepare=attach, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    while b"epoch" not in output:
        output += os.read(controller, 1 << 16)
    os.close(controller)
    check(job, process)


def test_a_run_folder_that_is_renamed(tmp_path: Path) -> None:
    """It has its name again at the next checkpoint, and nothing is lost."""
    job = small_job.write_job(tmp_path)
    process = start(job, stdout=subprocess.DEVNULL)
    metrics = job.parent / "runs" / "small-001" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 20:
        assert process.poll() is None
        time.sleep(0.02)
    metrics.parent.rename(job.parent / "moved")
    check(job, process)
    assert any("moved is called" in text for text in events(job))
    assert not (job.parent / "moved").exists()
    steps = [row["step"] for row in small_job.read_rows(small_job.newest_run(job)) if "lr" in row]
    assert steps == list(range(1, 201))
