"""A sweep and a repetition that are killed five times end like the same commands without a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.faults import small_job
from tests.paths import ROOT

SPACE = "sweep: {trials: 4, seed: 3, space: {train.optimizer.lr: {low: 1e-3, high: 1e-1, log: true}}}\n"
RUNS = {
    "sweep": [f"small-sweep-001/trial{number}-001" for number in range(4)],
    "repeat": [f"small-seed{seed}-001" for seed in range(4)],
}
OPTIONS = {"sweep": [], "repeat": ["--seeds", "4"]}
STEPS_PER_EPOCH, CHECKPOINT_STEPS = 8, 7
EPOCHS = 3


def start(command: str, job: Path) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own, with the witness of the fault tests."""
    runs = str(job.parent / "runs")
    arguments = [sys.executable, "-m", "tests.faults.driver", command, str(job), "--runs", runs, *OPTIONS[command]]
    with (job.parent / "job.log").open("a") as log:
        return subprocess.Popen(
            arguments,
            cwd=ROOT,
            env=small_job.make_environment(job),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_when(moment: Callable[[], bool], command: str, job: Path) -> None:
    """Run the command until a moment, then kill all of its processes at once."""
    process = start(command, job)
    while not moment():
        assert process.poll() is None, (job.parent / "job.log").read_text()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while small_job.processes(job.parent):
        time.sleep(0.01)


def list_moments(runs: Sequence[Path]) -> dict[str, Callable[[], bool]]:
    """List five moments of a command by a description; each comes after the one before."""

    def has_trained(run: Path, step: int) -> bool:
        numbers = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
        return max(numbers, default=0) >= step

    return {
        "before the first step": lambda: (runs[0] / "job.yaml").exists(),
        "in the first run": lambda: has_trained(runs[0], 2 * CHECKPOINT_STEPS),
        "when the first run has its result": lambda: (runs[0] / "result.json").exists(),
        "between two runs": lambda: runs[1].exists(),
        "in the last run": lambda: has_trained(runs[3], CHECKPOINT_STEPS),
    }


@pytest.mark.nightly
@pytest.mark.parametrize("command", RUNS)
def test_a_command_that_is_killed_five_times_trains_nothing_twice(command: str, tmp_path: Path) -> None:
    jobs = [small_job.write_job(tmp_path / name, epochs=str(EPOCHS)) for name in ("calm", "killed")]
    for job in jobs:
        with job.open("a") as file:
            file.write(SPACE)
    calm, killed = jobs
    assert start(command, calm).wait() == 0
    runs = [killed.parent / "runs" / name for name in RUNS[command]]
    for description, moment in list_moments(runs).items():
        kill_when(moment, command, killed)
        print(f"{command}: killed {description}")
    assert start(command, killed).wait() == 0, (killed.parent / "job.log").read_text()

    for name in RUNS[command]:
        assert small_job.differences(calm.parent / "runs" / name, killed.parent / "runs" / name) == []
    folders = [sorted(path.name for path in (job.parent / "runs").rglob("*-0*") if path.is_dir()) for job in jobs]
    assert [name for name in folders[0] if "step" not in name] == [name for name in folders[1] if "step" not in name]
    summaries = [sorted((job.parent / "runs").glob("*/best.yaml")) for job in jobs]
    summaries = summaries if command == "sweep" else [[job.parent / "runs/repeat-small/repeat.json"] for job in jobs]
    assert summaries[0][0].read_text() == summaries[1][0].read_text()
    steps = [len(small_job.read_rows(job.parent, "ledger.jsonl")) for job in jobs]
    print(f"{command}: {steps[0]} steps without a kill, {steps[1]} with five kills")
    assert steps[0] == len(runs) * EPOCHS * STEPS_PER_EPOCH
    assert steps[0] <= steps[1] <= steps[0] + 5 * CHECKPOINT_STEPS
