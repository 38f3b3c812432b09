"""Killed at any moment, alone or together, a run ends with the bits of one that was left in peace.

`pytest -m nightly tests/faults` (the nightly run) does the same 200 times. A result that is not identical is a
failure and never tried again; the seed of each run is in its name.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from drivetrain.system.signals import KILLED_EXIT_CODE
from tests.faults import small_job

NIGHTLY = int(os.environ.get("DRIVETRAIN_KILLS", "200"))
FIRST = int(os.environ.get("DRIVETRAIN_FIRST", "0"))
"""Where the seeds begin, so that several sittings make one count."""
STEPS = {"every": "7 steps"}
SECONDS = {"every": "1s", "epochs": "60"}
"""Saves in the background, and a run long enough to have some."""
TWO_THREADS = {"cpu_threads": "2"}


@pytest.fixture(scope="module")
def undisturbed_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, float]]:
    """Runs that nobody killed, by settings, with the seconds that each took; made when they are asked for."""
    runs: dict[str, tuple[Path, float]] = {}
    runs["folder"] = tmp_path_factory.mktemp("peaceful"), 0.0
    return runs


def reference(undisturbed_runs: dict[str, tuple[Path, float]], settings: dict[str, str]) -> tuple[Path, float]:
    name = "-".join(f"{key}-{value}" for key, value in settings.items()).replace(" ", "-")
    if name not in undisturbed_runs:
        job = small_job.write_job(undisturbed_runs["folder"][0] / name, **settings)
        begun = time.monotonic()
        small_job.finish(job)
        assert small_job.ledger_faults(job) == []
        undisturbed_runs[name] = small_job.newest_run(job), time.monotonic() - begun
    return undisturbed_runs[name]


def kill_until_done(job: Path, draw: random.Random, kills: int, length: float) -> list[str]:
    """Start, kill and start again until the run is done; what was killed when."""
    history: list[str] = []
    while small_job.read_status(job) != "done":
        assert len(history) < kills + 60, history
        process = small_job.start(job)
        whom = draw.choice(["all", "trainer", "supervisor"]) if len(history) < kills else ""
        if not whom:
            assert process.wait(timeout=300) == 0, (job.parent / "job.log").read_text()
            continue
        try:
            process.wait(timeout=draw.uniform(0.0, length))
            assert process.returncode == 0, (job.parent / "job.log").read_text()
        except subprocess.TimeoutExpired:
            history.append(f"{whom} after {where(job)}")
            strike(process, whom)
    return history


def where(job: Path) -> str:
    """How far the run has come, in the words of its log."""
    lines = [line for line in (job.parent / "job.log").read_text().splitlines() if line]
    return lines[-1][:40] if lines else "nothing"


def strike(process: subprocess.Popen[str], whom: str) -> None:
    """SIGKILL the supervisor, the trainer, or all of them, and wait until the supervisor is gone."""
    children = psutil.Process(process.pid).children(recursive=True)
    pids = {
        "all": [process.pid, *(p.pid for p in children)],
        "supervisor": [process.pid],
        "trainer": [p.pid for p in children][:1],
    }[whom]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=120)


def check(job: Path, calm: Path) -> None:
    assert small_job.differences(calm, small_job.newest_run(job)) == []
    assert small_job.ledger_faults(job) == []
    assert small_job.leftovers(small_job.newest_run(job)) == []
    end = time.monotonic() + 10
    while small_job.processes(job.parent) and time.monotonic() < end:
        time.sleep(0.1)
    assert small_job.processes(job.parent) == []


@pytest.mark.parametrize(
    ("seed", "kills", "settings"),
    [
        pytest.param(1, 4, STEPS, id="foreground"),
        pytest.param(2, 4, SECONDS, id="background", marks=pytest.mark.nightly),
        pytest.param(3, 2, {**STEPS, **TWO_THREADS}, id="two-threads", marks=pytest.mark.nightly),
    ],
)
def test_ten_kills(
    tmp_path: Path, undisturbed_runs: dict[str, tuple[Path, float]], seed: int, kills: int, settings: dict[str, str]
) -> None:
    calm, length = reference(undisturbed_runs, settings)
    job = small_job.write_job(tmp_path, **settings)
    kill_until_done(job, random.Random(seed), kills, length)
    check(job, calm)


@pytest.mark.nightly
def test_many_kills(tmp_path: Path, undisturbed_runs: dict[str, tuple[Path, float]]) -> None:
    """One to five kills a run until the number is reached; each run is compared before the next one starts."""
    done, number = 0, FIRST
    history: list[str] = []
    while done < NIGHTLY:
        number += 1
        draw = random.Random(1000 + number)
        settings = draw.choice([STEPS, STEPS, SECONDS, {**STEPS, **TWO_THREADS}])
        calm, length = reference(undisturbed_runs, settings)
        job = small_job.write_job(tmp_path / str(number), **settings)
        now = kill_until_done(job, draw, min(draw.randint(1, 5), NIGHTLY - done), length)
        check(job, calm)
        done += len(now)
        history += now
    print(f"{done} kills in {number - FIRST} runs, every run bit-identical")
    for line in sorted(history):
        print("  ", line)


UNFREEZE = "0.1, freeze: {names: [features]}, unfreeze: [{epoch: 3, names: [features]}]"
"""With eight steps in an epoch: from step 16 on the convolutions learn, too."""


@pytest.mark.nightly
def test_killed_around_an_unfreezing(tmp_path: Path) -> None:
    """The optimizer has other parameters before than after; the process that goes on finds those of its checkpoint."""
    settings = {"dropout": UNFREEZE, "epochs": "4", "every": "3 steps"}
    calm = small_job.write_job(tmp_path / "calm", **settings)
    assert "unfreeze" in small_job.finish(calm)
    for call in (15, 17, 19):
        job = small_job.write_job(tmp_path / str(call), **settings)
        small_job.finish(job, expected=KILLED_EXIT_CODE, FAULT=f"batch:{call}:kill")
        small_job.finish(job)
        check(job, small_job.newest_run(calm))
