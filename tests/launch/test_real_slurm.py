"""Generated batch scripts under a real Slurm: to the end, over a time limit, a kill and a lost node, with the same bits.

As root: apt-get install slurmctld slurmd slurm-client munge && python -m pytest -m nightly -s THIS_FILE
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import slurm_cluster
from tests.paths import ROOT
from tests.slurm_cluster import SlurmCluster, until
from tests.supervisor.test_supervisor import TEXT, command, images, rows, same

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(slurm_cluster.MISSING), reason=slurm_cluster.MISSING),
]
EPOCHS = 100


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster.cluster(3, tmp_path_factory.mktemp("slurm")) as made:
        yield made


def small_job(folder: Path) -> Path:
    images(folder / "images.npz")
    path = folder / "tiny.yaml"
    path.write_text(TEXT.replace("epochs: 4", f"epochs: {EPOCHS}"))
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return small_job(tmp_path)


def script(job: Path, nodes: int = 2) -> Path:
    """The batch script of a job in its folder."""
    shared = [str(job.parent), str(ROOT), sys.prefix]
    (job.parent / "site.yaml").write_text(f"slurm:\n  shared: {shared}\n  grace: 20s\n")
    words = [sys.executable, "-m", "runtime", "launch", "tiny.yaml", "--on", "slurm", "--nodes", str(nodes)]
    words += ["--site", "site.yaml"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=job.parent, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return job.parent / "tiny.sbatch"


def log(job: Path, number: str) -> str:
    path = job.parent / f"tiny-{number}.log"
    return path.read_text() if path.exists() else ""


def run_of(job: Path) -> Path:
    return job.parent / "runs" / "tiny-001"


def trains(job: Path, beyond: int = 0) -> bool:
    """Whether a step after this one is recorded."""
    path = run_of(job) / "metrics.jsonl"
    return path.exists() and any(row["step"] > beyond for row in rows(run_of(job)))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes on one machine, without interruption."""
    home = tmp_path_factory.mktemp("reference")
    path = small_job(home)
    words = [*command(path, "--set", "limits.processes=2", "--set", "limits.gpus=none")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "runs" / "tiny-001"


def processes(machine: str, number: str) -> list[psutil.Process]:
    """What runs for a job on a machine, the daemons of Slurm left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            if environ.get("SLURM_JOB_ID") == number and environ.get("SLURMD_NODENAME") == machine:
                found.append(process)
    return found


def test_two_nodes_train_to_the_end(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    number = slurm.submit(script(job))
    ended = slurm.ended(number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), log(job, number)
    assert "(SLURM_* variables)" in log(job, number)
    assert same(reference, run_of(job))
    assert not list((job.parent / "runs").glob(".slurm-*"))
    assert not (job.parent / "runs" / "tiny-002").exists()


def test_a_time_limit_queues_the_job_again(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    number = slurm.submit(script(job))
    until(lambda: trains(job, 10), 300)
    slurm.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    until(lambda: slurm.job(number)["Restarts"] == "1", 180, 0.5)
    begin = time.monotonic()
    slurm.run("scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED")
    assert "exit 75; queued again" in log(job, number)
    ended = slurm.ended(number)
    print(f"time limit: ended {time.monotonic() - begin:.0f} s after it was queued again")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log(job, number)
    assert "resumes" in log(job, number)
    assert same(reference, run_of(job))
    assert rows(reference) == rows(run_of(job))


def test_a_killed_step_trains_again_in_the_same_allocation(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    number = slurm.submit(script(job))
    until(lambda: trains(job, 10), 300)
    begin = time.monotonic()
    for process in processes("node1", number):
        process.kill()
    until(lambda: "attempt 1 of 3 in this allocation" in log(job, number), 120, 0.1)
    print(f"killed step: started again after {time.monotonic() - begin:.0f} s")
    until(lambda: "resumes" in log(job, number).partition("attempt 1 of 3 in this allocation")[2], 120, 0.1)
    print(f"killed step: resumed after {time.monotonic() - begin:.0f} s")
    ended = slurm.ended(number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), log(job, number)
    assert same(reference, run_of(job))


def test_a_mistake_in_the_job_is_not_tried_again(slurm: SlurmCluster, job: Path) -> None:
    path = script(job)
    job.write_text(TEXT.replace("epochs:", "epoks:"))
    number = slurm.submit(path)
    ended = slurm.ended(number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0"), log(job, number)
    assert "exit 2; another attempt would end in the same way" in log(job, number)


def test_scancel_saves_and_is_not_queued_again(slurm: SlurmCluster, job: Path) -> None:
    number = slurm.submit(script(job, nodes=1))
    until(lambda: trains(job, 10), 300)
    slurm.run("scancel", number)
    ended = slurm.ended(number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0"), log(job, number)
    until(lambda: "ended by Slurm, exit 75" in log(job, number), 60)
    assert "stopped by SIGTERM" in log(job, number)


def test_a_dead_node_does_not_hold_the_job(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    """Last: the node is gone afterwards."""
    number = slurm.submit(script(job))
    until(lambda: trains(job, 10), 300)
    begin = time.monotonic()
    dead = slurm.machines[1]
    dead.cut()
    for process in processes("node1", number):
        process.kill()
    for process in dead.started:
        process.send_signal(signal.SIGKILL)
    until(lambda: "a node does not answer; queued again" in log(job, number), 300, 0.5)
    print(f"dead node: queued again after {time.monotonic() - begin:.0f} s")
    ended = slurm.ended(number, 900)
    print(f"dead node: ended after {time.monotonic() - begin:.0f} s on {ended['NodeList']}")
    assert ended["JobState"] == "COMPLETED", log(job, number)
    assert same(reference, run_of(job))
