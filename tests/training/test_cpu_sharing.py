"""Two threads that share one of two CPUs while other programs compete for both, and have one each before and after."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.system import process_tree
from drivetrain.training import cpu_sharing
from drivetrain.training.cpu_sharing import CpuSharing, CpuTimes, watch_neighbors
from tests import tiny
from tests.paths import IMPORTS, ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.host
CPU_COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
ALONE = CpuTimes(waited=0.05, used=2.0, busy=2.0)
"""Seconds of a window of one second."""
STARVED = CpuTimes(waited=1.0, used=1.1, busy=2.0)
SHARING = CpuTimes(waited=0.9, used=1.0, busy=2.0)
ONE_CPU_IDLE = CpuTimes(waited=0.9, used=0.5, busy=1.0)
"""Another run has chosen the same CPU."""
NO_NEIGHBOR = CpuTimes(waited=0.9, used=1.0, busy=1.1)
OWN_WORKERS = CpuTimes(waited=1.0, used=2.0, busy=2.0)
"""The run's own loader workers compete with its threads."""


def replay(monkeypatch: pytest.MonkeyPatch, windows: list[CpuTimes]) -> tuple[CpuSharing, list[bool], list[bool]]:
    """Adapt to windows of a second; returns whether the CPU was shared after each, and which changes the log shows."""
    moment, total, states, shown = [0.0], [CpuTimes(0.0, 0.0, 0.0)], list[bool](), list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    calls: list[bool] = []
    sharing = CpuSharing(lambda: total[0], calls.append, lambda text, is_shown: shown.append(is_shown))
    for window in windows:
        moment[0] += 0.5
        sharing.adapt()
        moment[0] += 0.5
        total[0] = CpuTimes(*(vars(total[0])[name] + vars(window)[name] for name in vars(window)))
        sharing.adapt()
        states.append(sharing.is_sharing)
    changes = [state for state, before in zip(states, [False, *states], strict=False) if state != before]
    assert [call for call, before in zip(calls, [False, *calls], strict=False) if call != before] == changes
    return sharing, states, shown


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([ALONE] * 4, [False] * 4),
        ([OWN_WORKERS] * 4, [False] * 4),
        ([STARVED, ALONE, STARVED, ALONE], [False] * 4),
        ([STARVED, STARVED, SHARING, SHARING], [False, True, True, True]),
        ([STARVED, STARVED, NO_NEIGHBOR, NO_NEIGHBOR], [False, True, True, False]),
        ([STARVED, STARVED, ONE_CPU_IDLE, ONE_CPU_IDLE], [False, True, True, False]),
        # After a change back it takes twice as long to the next one.
        ([*[STARVED] * 2, *[NO_NEIGHBOR] * 2, *[STARVED] * 4], [False, True, True, False, False, False, False, True]),
    ],
)
def test_when_a_cpu_is_shared(monkeypatch: pytest.MonkeyPatch, windows: list[CpuTimes], expected: list[bool]) -> None:
    _, states, shown = replay(monkeypatch, windows)
    assert states == expected
    assert all(shown)


def test_a_neighbor_that_comes_and_goes_fills_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, shown = replay(monkeypatch, [*[STARVED] * 60, *[NO_NEIGHBOR] * 60] * 10)
    assert shown[: cpu_sharing.MAX_EVENTS_SHOWN] == [True] * cpu_sharing.MAX_EVENTS_SHOWN
    assert not any(shown[cpu_sharing.MAX_EVENTS_SHOWN :])
    assert len(shown) == 20, "each time it is noticed"


def test_the_end_of_a_training_gives_the_cpus_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing, _, _ = replay(monkeypatch, [STARVED] * 2)
    calls: list[bool] = []
    sharing.share_cpu = calls.append
    sharing.close()
    sharing.close()
    assert calls == [False]


class OpenMp:
    """An OpenMP runtime whose threads can sleep, on the first CPU."""

    def __init__(self, name: None) -> None:
        self.spin_times: list[int] = []
        LIBRARIES.append(self)

    def kmp_set_blocktime(self, milliseconds: int) -> None:
        self.spin_times.append(milliseconds)

    def kmp_get_blocktime(self) -> int:
        return 7

    def sched_getcpu(self) -> int:
        return min(os.sched_getaffinity(0))


LIBRARIES: list[OpenMp] = []


@pytest.mark.skipif(CPU_COUNT != cpu_sharing.CPUS, reason="needs two CPUs")
def test_who_is_placed_on_one_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", OpenMp)
    run = tiny.assemble_run(tmp_path, tiny.job())
    values: dict[str, str | int] = {"openmp_runtime": "iomp5", "cpu_threads": 2}
    run.plan = run.plan.with_values(values)
    assert watch_neighbors(run) is None, "nothing is preloaded, as in a program that calls the library"
    monkeypatch.setenv("LD_PRELOAD", "/opt/libiomp5.so")
    assert watch_neighbors(replace(run, job=tiny.job(optimize="cpu_threads: 2"))) is None, "the job says so"
    sharing = watch_neighbors(run)
    assert sharing is not None
    both, ended = os.sched_getaffinity(0), threading.Event()
    loader = threading.Thread(target=ended.wait)
    loader.start()
    try:
        sharing.share_cpu(True)
        assert os.sched_getaffinity(0) == {min(both)}
        assert os.sched_getaffinity(loader.native_id or 0) == both
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            assert os.sched_getaffinity(child.pid) == {min(both)}, "a new process begins where it was started"
            sharing.share_cpu(True)
            assert os.sched_getaffinity(child.pid) == both
            child.communicate(b"\n")
    finally:
        sharing.share_cpu(False)
        ended.set()
    assert os.sched_getaffinity(0) == both
    assert LIBRARIES[-1].spin_times == [0, 0, 7]


@pytest.mark.skipif(not CPU_COUNT, reason="needs Linux")
def test_the_cpu_time_of_a_process_and_its_children() -> None:
    before, begin = process_tree.sum_cpu_seconds(), time.process_time()
    while time.process_time() - begin < 0.1:
        pass
    with subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass\ninput()"], stdin=-1
    ) as child:
        wait_until(lambda: process_tree.sum_cpu_seconds() - before >= 0.25)
        child.communicate(b"\n")


@pytest.mark.parametrize("stat", [None, "cpu  1 2 3 4 5 6 7 8 9 10\n", "cpu0 1 2 x\ncpu1 1\n"])
def test_a_kernel_that_does_not_count(tmp_path: Path, stat: str | None) -> None:
    counts = tmp_path / str(os.getpid()) / "task" / "1" / "schedstat"
    counts.parent.mkdir(parents=True)
    counts.write_text("5 3000000000 7\n")
    (tmp_path / "stat").write_text("cpu0 100 0 50 900 30 0 0 0 0 0\ncpu1 100 0 50 900 30 0 0 100 0 0\n")
    times = cpu_sharing._read_times({0, 1}, tmp_path)
    assert times is not None
    assert (times.waited, times.busy) == (3.0, 400 / os.sysconf("SC_CLK_TCK"))
    (tmp_path / "stat").unlink()
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
    assert cpu_sharing._read_times({0, 1}, tmp_path) is None


@pytest.mark.slow
@pytest.mark.skipif(CPU_COUNT != cpu_sharing.CPUS, reason="needs two CPUs")
def test_a_busy_neighbor_changes_no_bit(tmp_path: Path) -> None:
    arguments = ["--set", "train.epochs=8", "--set", "optimize.measure=off", "--set", "baselines=off", "--new"]
    command = [sys.executable, "-m", "drivetrain", "train", "jobs/digits.yaml", *arguments]
    environment = os.environ | {"PYTHONPATH": IMPORTS}
    digests, events = [], []
    for neighbors in (0, 2):
        programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbors)]
        try:
            runs = tmp_path / str(neighbors)
            done = subprocess.run(
                [*command, "--runs", str(runs)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
        finally:
            for program in programs:
                program.kill()
                program.wait()
        assert done.returncode == 0, done.stdout + done.stderr
        folder = next(runs.glob("*/result.json")).parent
        if "libiomp5" not in done.stdout:
            pytest.skip("libiomp5 is not installed")
        digests.append(hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest())
        log = folder / "events.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        events.append([row["step"] for row in rows if row["kind"] == "cpu"])
    assert events[1], "the neighbors were noticed"
    assert digests[0] == digests[1]
