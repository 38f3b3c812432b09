"""Two threads share one of two CPUs while other programs compete for both, and have one each before and after."""

from __future__ import annotations

import contextlib
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
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.system import cpu_starvation, process_tree
from drivetrain.training import cpu_sharing
from drivetrain.training.cpu_sharing import CpuSharing, watch_neighbors
from drivetrain.training.run import Run
from drivetrain.training.step_records import StepRecords
from tests import tiny
from tests.messages import get_message, says
from tests.paths import IMPORTS, ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.host
CPU_COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
Counts = tuple[float, float, float, int]
"""Of an epoch of one second: seconds waited, used and busy, and samples."""
ALONE: Counts = (0.05, 2.0, 2.0, 1000)
STARVED: Counts = (1.0, 1.1, 2.0, 100)
VERY_STARVED: Counts = (1.0, 1.1, 2.0, 40)
SHARING: Counts = (0.9, 1.0, 2.0, 600)
ONE_CPU_IDLE: Counts = (0.9, 0.5, 1.0, 600)
"""Another run has chosen the same CPU."""
NO_NEIGHBOR: Counts = (0.9, 1.0, 1.1, 600)
OWN_WORKERS: Counts = (1.0, 2.0, 2.0, 500)
"""The run's own loader workers compete with its threads."""


def replay(
    monkeypatch: pytest.MonkeyPatch, epochs: list[Counts], *, can_share: bool = True, seconds: float = 1.0
) -> tuple[list[bool], list[str]]:
    """Check after epochs of these lengths; return whether the CPU was shared after each, and the messages."""
    moment, total, texts = [0.0], [(0.0, 0.0, 0.0, 0)], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(CpuSharing, "read_counts", lambda self: total[0])
    monkeypatch.setattr(CpuSharing, "share_cpu", lambda self, is_sharing: setattr(self, "is_sharing", is_sharing))
    run: Any = SimpleNamespace(
        plan=SimpleNamespace(value=lambda name: 2),
        counters=SimpleNamespace(step=1),
        events=SimpleNamespace(add=lambda kind, text, step: texts.append(text)),
    )
    library: Any = SimpleNamespace(kmp_get_blocktime=lambda: 1) if can_share else None
    sharing, states = CpuSharing(run, library), list[bool]()
    for epoch in epochs:
        moment[0] += seconds
        total[0] = tuple(a + seconds * b for a, b in zip(total[0], epoch, strict=True))  # type: ignore[assignment]
        was_sharing = sharing.is_sharing
        assert sharing.look_at_neighbors() == (sharing.is_sharing != was_sharing)
        states.append(sharing.is_sharing)
    sharing.close()
    assert not sharing.is_sharing, "the end of a training gives the CPUs back"
    return states, texts


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([ALONE] * 2, [False] * 2),
        ([OWN_WORKERS] * 2, [False] * 2),
        ([ALONE, STARVED, SHARING, SHARING], [False, True, True, True]),
        ([STARVED, NO_NEIGHBOR, ALONE], [True, False, False]),
        ([STARVED, ONE_CPU_IDLE], [True, False]),
    ],
)
def test_when_a_cpu_is_shared(monkeypatch: pytest.MonkeyPatch, epochs: list[Counts], expected: list[bool]) -> None:
    states, texts = replay(monkeypatch, epochs)
    assert states == expected
    assert len(texts) == sum(one != two for one, two in zip(states, [False, *states], strict=False))


def test_short_epochs_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay(monkeypatch, [STARVED] * 5, seconds=0.3)[0] == [False, False, False, True, True]


def test_where_threads_cannot_share_a_cpu_the_slowdown_and_a_cure_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop fell from 3,860 to 64 samples/s."""
    states, texts = replay(monkeypatch, [ALONE, STARVED, STARVED, VERY_STARVED, ALONE, ALONE], can_share=False)
    assert not any(states)
    assert says(texts[0], "other-programs-use-slower", "0.9", 2, "10.0")
    assert says(texts[1], "other-programs-use-slower", "0.9", 2, "25.0")
    assert len(texts) == 2


def test_a_slowdown_that_sharing_does_not_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of oneDNN that compute gradients of convolutions in bf16 spin on one CPU, too: 25 times slower."""
    states, texts = replay(monkeypatch, [ALONE, VERY_STARVED, VERY_STARVED, VERY_STARVED, SHARING])
    assert states == [False, True, True, True, True]
    assert says(texts[1], "other-programs-use-slower", "0.9", 2, "25.0")
    assert len(texts) == 2


def test_the_first_epoch_need_not_end() -> None:
    """A forecast by steps whose threads wait for each other was seven times too long."""
    corrections = list[str]()
    looks = iter([False, False, True])
    sharing: Any = SimpleNamespace(has_looked=False, is_sharing=True)
    records: Any = StepRecords.__new__(StepRecords)
    records.run = SimpleNamespace(
        lockstep=SimpleNamespace(held_error=None, holding_errors=contextlib.nullcontext),
        signals=SimpleNamespace(peek=lambda: None),
    )
    records.profiler, records.saver = None, SimpleNamespace(is_due=lambda: False)
    records.progress = SimpleNamespace(restart_estimate=lambda run, reason: corrections.append(reason))

    def look() -> bool:
        sharing.has_looked = next(looks)
        return bool(sharing.has_looked)

    sharing.look_at_neighbors = look
    records.cpu_sharing = sharing
    for _ in range(5):
        records.end_step(None)
    assert corrections == [get_message("corrected-threads-share")]
    assert next(looks, None) is None


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


def watch(run: Run) -> CpuSharing:
    sharing = watch_neighbors(run)
    assert sharing
    return sharing


@pytest.mark.skipif(CPU_COUNT != cpu_sharing.CPUS, reason="needs two CPUs")
def test_who_is_placed_on_one_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", OpenMp)
    run = tiny.assemble_run(tmp_path, tiny.job())
    values: dict[str, str | int] = {"openmp_runtime": "iomp5", "cpu_threads": 2}
    run.plan = run.plan.with_values(values)
    assert watch(run).library is None, "nothing is preloaded"
    monkeypatch.setenv("LD_PRELOAD", "/opt/libiomp5.so")
    assert watch(replace(run, job=tiny.job(optimize="cpu_threads: 2"))).library is None, "the job says so"
    sharing = watch(run)
    assert sharing.library
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
    assert cpu_starvation.read_waited_seconds(root=tmp_path) == 3.0
    assert cpu_starvation.read_busy_seconds({0, 1}, tmp_path) == 400 / os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").unlink()
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
    assert cpu_starvation.read_busy_seconds({0, 1}, tmp_path) is None


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
