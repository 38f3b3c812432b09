"""SIGTERM in every phase: exit 75 within the grace period, nothing committed is lost, and the same command goes on."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.faults import small_job
from tests.messages import says

GRACE = 8.0
"""Seconds; engines give ten before they kill."""
PHASES = {
    "detect": "detect:1",
    "plan written": "first attempt:1",
    "data": "load data:1",
    "assemble": "assemble:1",
    "trial save": "write tensors:1",
    "gradients": "gradients:20",
    "update": "update:20",
    "middle of a save": "write tensors:8",
    "rename of a save": "rename checkpoint:4",
    "removal of a save": "remove checkpoints:4",
    "evaluation": "evaluation batch:3",
    "evaluation recorded": "record evaluation:3",
    "last save": "last checkpoint:2",
    "artifact": "commit model:1",
    "report": "report:1",
}
SHORT = {"epochs": "4"}


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = small_job.write_job(tmp_path_factory.mktemp("calm"), **SHORT)
    small_job.finish(job)
    return small_job.newest_run(job)


def seconds(text: str) -> float:
    """From the signal to now."""
    match = re.search(r"fault: \w+ at ([\d.]+)", text)
    assert match, text
    return time.time() - float(match[1])


def stop_in_phase(job: Path, phase: str) -> float:
    """Train until the signal in this phase ends it; seconds from the signal to the end."""
    finished = phase == "report"
    text = small_job.finish(job, expected=0 if finished else 75, FAULT=f"{PHASES[phase]}:term")
    took = seconds(text)
    if not finished:
        assert "stopped by SIGTERM" in text
        assert says(text, "run-same-command")
    return took


def go_on(job: Path, undisturbed_run: Path) -> None:
    """The same command ends the run, with the same bits."""
    if small_job.read_status(job) != "done":
        small_job.finish(job)
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []
    assert small_job.ledger_faults(job) == []
    assert small_job.leftovers(small_job.newest_run(job)) == []


NIGHTLY = [
    pytest.param(phase, marks=pytest.mark.nightly)
    for phase in ("data", "update", "evaluation", "artifact", "middle of a save")
]


@pytest.mark.parametrize("phase", ["report", *NIGHTLY])
def test_a_signal_in_a_phase(tmp_path: Path, undisturbed_run: Path, phase: str) -> None:
    job = small_job.write_job(tmp_path, **SHORT)
    stop_in_phase(job, phase)
    go_on(job, undisturbed_run)


def test_a_second_signal_leaves_at_once_without_damage(tmp_path: Path, undisturbed_run: Path) -> None:
    job = small_job.write_job(tmp_path, **SHORT)
    output = small_job.finish(job, expected=143, FAULT=f"{PHASES['middle of a save']}:twice")
    assert re.search(r"ended at once by another SIGTERM.*: (saved up to step \d+, where|nothing was saved yet)", output)
    go_on(job, undisturbed_run)


@pytest.mark.nightly
def test_notices_of_a_scheduler(tmp_path: Path, undisturbed_run: Path) -> None:
    """It sends them to the command, to all processes of a job, or the kernel to the one that computes."""
    job = small_job.write_job(tmp_path, **SHORT)
    for notice in ("SIGUSR1@supervisor", "SIGUSR2@both", "SIGXCPU@trainer"):
        text = small_job.finish(job, expected=75, FAULT=f"gradients:4:{notice}")
        assert f"stopped by {notice.partition('@')[0]} (" in text
        assert f"saved as {small_job.newest_run(job)}/checkpoints/step-" in text
    go_on(job, undisturbed_run)


def test_a_signal_while_the_trainer_starts(tmp_path: Path, undisturbed_run: Path) -> None:
    """Before it listens, a signal waits; no traceback, no lost signal."""
    job = small_job.write_job(tmp_path, **SHORT)
    process = small_job.start(job)
    while not psutil.Process(process.pid).children():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 75, (job.parent / "job.log").read_text()
    assert "stopped by SIGINT (Ctrl-C)" in (job.parent / "job.log").read_text()
    assert "Traceback" not in (job.parent / "job.log").read_text()
    go_on(job, undisturbed_run)


def test_a_signal_on_the_last_steps_of_the_trainer(tmp_path: Path, undisturbed_run: Path) -> None:
    """All is done and saved, so it changes nothing."""
    job = small_job.write_job(tmp_path, **SHORT)
    small_job.finish(job, FAULT="last steps")
    assert small_job.read_status(job) == "done"
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []


needs_compiler = pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v g++"], capture_output=True, check=False).returncode != 0,
    reason="g++ is not installed",
)
COMPILED = ("--set", "optimize.compile=true")


@needs_compiler
@pytest.mark.nightly
def test_a_signal_in_the_middle_of_compiling(tmp_path: Path) -> None:
    """In the first compilation, then in a later one of the same run; it ends with the bits of a run without signals."""
    job = small_job.write_job(tmp_path / "job", **SHORT)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    for number in (1, 2):
        fault = f"compile graph:{number}:term"
        text = small_job.finish(job, *COMPILED, expected=75, FAULT=fault, **cache)
        assert "stopped by SIGTERM" in text
        assert "compile failed" not in text
    small_job.finish(job, *COMPILED, **cache)  # type: ignore[arg-type]
    undisturbed_job = small_job.write_job(tmp_path / "calm", **SHORT)
    small_job.finish(undisturbed_job, *COMPILED, **cache)  # type: ignore[arg-type]
    assert small_job.differences(small_job.newest_run(undisturbed_job), small_job.newest_run(job)) == []


@needs_compiler
@pytest.mark.parametrize("is_new", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["resumed", "new"])
def test_a_resumed_run_compiles_nothing_again(tmp_path: Path, is_new: bool) -> None:
    """Nor does another run of the job, whose network is the same."""
    job, cache = small_job.write_job(tmp_path / "job", **SHORT), tmp_path / "cache"
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}

    def list_compiled() -> set[Path]:
        """Compiled kernels and graphs; a graph that is found writes its source again."""
        return {path for path in cache.rglob("*") if path.suffix == ".so" or "fxgraph" in path.parts}

    text = small_job.finish(job, *COMPILED, expected=75, FAULT="update:20:term", **environment)
    compiled = list_compiled()
    next_job = small_job.write_job(tmp_path / "second", **SHORT) if is_new else job
    text += small_job.finish(next_job, *COMPILED, **environment)  # type: ignore[arg-type]
    assert "compile failed" not in text
    assert {path.suffix for path in compiled} >= {".so"}
    assert list_compiled() == compiled


MEASURING = {
    "tune": ("tuner step:6", "optimize.measure=full"),
    "pairs of tune": ("compare variants:1", "optimize.measure=full"),
    "search": ("size search step:2", "optimize.micro_batch=auto"),
}
"""What measures before the first step, and how a job asks for it."""


@pytest.mark.parametrize("phase", ["tune", pytest.param("search", marks=pytest.mark.nightly)])
def test_a_signal_while_something_is_measured(tmp_path: Path, phase: str) -> None:
    while_measured(small_job.write_job(tmp_path, **SHORT), phase)


def while_measured(job: Path, phase: str) -> float:
    """Nothing is committed yet; what was measured in part is not kept, and the same command measures again."""
    fault, setting = MEASURING[phase]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(job.parent / "cache")}
    text = small_job.finish(job, "--set", setting, expected=75, FAULT=f"{fault}:term", **cache)
    took = seconds(text)
    assert "stopped by SIGTERM" in text
    assert "epoch 1/" not in text
    assert not list((small_job.newest_run(job) / "checkpoints").glob("step-*"))
    assert not list((job.parent / "cache").rglob("*.json"))
    text = small_job.finish(job, "--set", setting, **cache)  # type: ignore[arg-type]
    assert "measured before" not in text
    assert small_job.ledger_faults(job) == []
    return took


@pytest.mark.nightly
def test_a_hundred_signals(tmp_path: Path, undisturbed_run: Path) -> None:
    """Every phase in turn, and random moments; the slowest end counts."""
    slowest: dict[str, float] = {}
    phases = [*PHASES, *MEASURING, "any moment"]
    first = int(os.environ.get("DRIVETRAIN_FIRST", "0"))
    for number in range(first, first + int(os.environ.get("DRIVETRAIN_STOPS", "100"))):
        phase = phases[number % len(phases)]
        job = small_job.write_job(tmp_path / str(number), **SHORT)
        if phase in MEASURING:
            took = while_measured(job, phase)
        else:
            took = any_moment(job, random.Random(number)) if phase == "any moment" else stop_in_phase(job, phase)
            go_on(job, undisturbed_run)
        slowest[phase] = max(took, slowest.get(phase, 0.0))
    for phase, took in slowest.items():
        print(f"{phase}: at most {took:.1f} s")
    assert max(slowest.values()) <= GRACE


def any_moment(job: Path, draw: random.Random) -> float:
    process = small_job.start(job)
    try:
        process.wait(timeout=draw.uniform(0.5, 6))
    except subprocess.TimeoutExpired:
        begun = time.monotonic()
        process.terminate()
        assert process.wait(timeout=120) in (0, 75), (job.parent / "job.log").read_text()
        return time.monotonic() - begun
    return 0.0
