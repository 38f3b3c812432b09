"""Processes of one host are killed or stopped at random moments: the same bits after the same command, and nobody is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.messages import get_message
from tests.paths import ROOT
from tests.supervisor.tiny_run import command, have_same_weights, read_rows
from tests.waiting import wait_until

EPOCHS = ("--set", "train.epochs=100")
ROUNDS = 30
WAYS = ("kill leader", "kill other", "kill supervisor", "stop leader", "stop other", "stop supervisor", "max_time")
CODES = {"kill": (8, 137, -signal.SIGKILL), "stop": (75,), "max_": (75,)}


def find_processes(supervisor: psutil.Process, count: int) -> list[psutil.Process]:
    """The supervisor, the leader, and the others by rank."""
    processes = supervisor.children()
    others = [p for p in processes if any("ranks/" in word for word in p.cmdline())]
    leader = next(p for p in processes if p not in others)
    assert len(others) == count - 1
    return [supervisor, leader, *others]


def disturb(processes: list[psutil.Process], way: str) -> None:
    """Send a signal to one of the processes."""
    if way == "max_time":
        return
    action, target = way.split()
    number = signal.SIGKILL if action == "kill" else signal.SIGTERM
    processes[{"supervisor": 0, "leader": 1, "other": -1}[target]].send_signal(number)


def run_disturbed(job: Path, options: tuple[str, ...], way: str, count: int, seconds: float) -> tuple[int, str]:
    """Start a run, and disturb it some seconds after its first step; return its exit code and output."""
    more = ("--set", f"train.max_time={seconds + 1:.2f}s") if way == "max_time" else ()
    running = subprocess.Popen(
        command(job, *options, *more), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = job.parent / "runs" / f"{way.replace(' ', '-')}-001" / "metrics.jsonl"
    wait_until(lambda: running.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") > 2), 120)
    # On a busy machine `max_time` may end the run before its first steps.
    processes = find_processes(psutil.Process(running.pid), count) if running.poll() is None else []
    time.sleep(seconds)
    disturb(processes, way)
    output, _ = running.communicate(timeout=120)
    wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes), 30)
    return running.returncode, output


@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, 3])
def test_killed_or_stopped_it_resumes_with_the_same_bits(job: Path, count: int) -> None:
    rounds, generator = int(os.environ.get("DRIVETRAIN_ROUNDS", ROUNDS)), random.Random(count)
    options = (*EPOCHS, "--set", f"limits.processes={count}")
    reference = subprocess.run(
        command(job, *options, "--set", "name=calm"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert reference.returncode == 0, reference.stderr
    calm = job.parent / "runs" / "calm-001"
    for number in range(rounds):
        way = WAYS[number % len(WAYS)]
        named = (*options, "--set", f"name={way.replace(' ', '-')}")
        run = job.parent / "runs" / f"{way.replace(' ', '-')}-001"
        shutil.rmtree(run, ignore_errors=True)
        code, output = run_disturbed(job, named, way, count, generator.uniform(0, 1.0))
        print(f"{count} processes, {way}: exit {code}", flush=True)
        assert code in CODES[way[:4]], output
        resumed = subprocess.run(command(job, *named), cwd=ROOT, capture_output=True, text=True, check=False)
        assert resumed.returncode == 0, resumed.stderr
        assert "resumed from step-" in resumed.stdout or get_message("stopped-before-first-step") in output
        assert have_same_weights(calm, run)
        assert read_rows(calm) == read_rows(run)
