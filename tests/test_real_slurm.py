"""The batch script under a real Slurm: to the end, over a time limit, a kill and a lost node, with the same bits.

As root: apt-get install slurmctld slurmd slurm-client munge && python -m pytest -m nightly -s THIS_FILE
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import slurm_cluster
from tests.paths import IMPORTS, ROOT
from tests.slurm_cluster import SlurmCluster
from tests.supervisor.tiny_run import TEXT, command, have_same_weights, read_rows, write_images
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(slurm_cluster.MISSING), reason=slurm_cluster.MISSING),
]
EPOCHS = 100
LONG_EPOCHS = 1000
"""For a training that lasts longer than a minute, the shortest time limit of Slurm."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster.cluster(4, tmp_path_factory.mktemp("slurm"), patience=120) as cluster:
        yield cluster


def small_job(folder: Path, epochs: int = EPOCHS) -> Path:
    write_images(folder / "images.npz")
    path = folder / "tiny.yaml"
    path.write_text(TEXT.replace("epochs: 4", f"epochs: {epochs}"))
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (folder := tmp_path / "it's a folder").mkdir()
    return small_job(folder)


def script(job: Path, *options: str, command: str = "") -> Path:
    """Write the batch script as a user edits it, beside the job.

    Args:
        options: more options of sbatch.
        command: runs in place of the training.
    """
    train = command or f"{shlex.quote(sys.executable)} -m drivetrain train tiny.yaml --set limits.gpus=none"
    lines = (ROOT / "examples" / "clusters" / "slurm.sbatch").read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("train=("):
            lines[number] = f"export PYTHONPATH={IMPORTS}; train=({train})"
        elif line.startswith("#SBATCH --job-name="):
            mine = ["--job-name=tiny", f"--chdir={shlex.quote(str(job.parent))}", *options]
            lines[number] = "\n".join(f"#SBATCH {option}" for option in mine)
    path = job.parent / "tiny.sbatch"
    path.write_text("\n".join(lines) + "\n")
    return path


def log(job: Path, number: str) -> str:
    path = job.parent / f"tiny-{number}.log"
    return path.read_text() if path.exists() else ""


def run_of(job: Path) -> Path:
    return job.parent / "runs" / "tiny-001"


def trains(job: Path, beyond: int = 0) -> bool:
    """Whether a step after this one is recorded."""
    path = run_of(job) / "metrics.jsonl"
    return path.exists() and any(row["step"] > beyond for row in read_rows(run_of(job)))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_alone(tmp_path_factory.mktemp("reference"))


def train_alone(home: Path, epochs: int = EPOCHS) -> Path:
    """A run of two processes on one machine, without interruption."""
    path = small_job(home, epochs)
    arguments = [*command(path, "--set", "limits.processes=2", "--set", "limits.gpus=none")]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "runs" / "tiny-001"


def processes(machine: str, number: str) -> list[psutil.Process]:
    """What runs for a job on a machine, the daemons of Slurm left out."""
    matching = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            if environ.get("SLURM_JOB_ID") == number and environ.get("SLURMD_NODENAME") == machine:
                matching.append(process)
    return matching


def test_two_nodes_train_to_the_end(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    number = slurm.submit(script(job))
    ended = slurm.wait_for_end(number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), log(job, number)
    assert have_same_weights(reference, run_of(job))
    assert not list((job.parent / "runs").glob(".slurm-*"))
    assert not (job.parent / "runs" / "tiny-002").exists()


def test_a_time_limit_queues_the_job_again(slurm: SlurmCluster, job: Path, tmp_path: Path) -> None:
    small_job(job.parent, LONG_EPOCHS)
    number = slurm.submit(script(job))
    wait_until(lambda: trains(job, 10), 300)
    slurm.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    wait_until(lambda: slurm.job(number)["Restarts"] == "1", 180, 0.5)
    begin = time.monotonic()
    slurm.run("scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED")
    assert "exit 75" in log(job, number)
    ended = slurm.wait_for_end(number, 1800)
    print(f"time limit: ended {time.monotonic() - begin:.0f} s after it was queued again")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log(job, number)
    assert "resumes" in log(job, number)
    (home := tmp_path / "alone").mkdir()
    reference = train_alone(home, LONG_EPOCHS)
    assert have_same_weights(reference, run_of(job))
    assert read_rows(reference) == read_rows(run_of(job))


def test_a_killed_step_trains_again_in_the_same_allocation(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    number = slurm.submit(script(job))
    wait_until(lambda: trains(job, 10), 300)
    begin = time.monotonic()
    for process in processes("node1", number):
        process.kill()
    wait_until(lambda: "attempt 1 of 3: exit" in log(job, number), 120, 0.1)
    print(f"killed step: started again after {time.monotonic() - begin:.0f} s")
    wait_until(lambda: "resumes" in log(job, number).partition("attempt 1 of 3: exit")[2], 120, 0.1)
    print(f"killed step: resumed after {time.monotonic() - begin:.0f} s")
    ended = slurm.wait_for_end(number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), log(job, number)
    assert have_same_weights(reference, run_of(job))


def test_missing_data_is_not_tried_again(slurm: SlurmCluster, job: Path) -> None:
    path = script(job)
    (job.parent / "images.npz").unlink()
    number = slurm.submit(path)
    ended = slurm.wait_for_end(number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "3:0", "0"), log(job, number)
    assert "attempt 1 of 3" not in log(job, number)


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 7, 9])
def test_what_would_end_in_the_same_way_is_not_tried_again(slurm: SlurmCluster, job: Path, code: int) -> None:
    number = slurm.submit(script(job, command=f"bash -c 'exit {code}'"))
    ended = slurm.wait_for_end(number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", f"{code}:0", "0"), log(job, number)


def test_twenty_jobs_one_after_another(slurm: SlurmCluster, job: Path) -> None:
    """On the same two nodes, each as soon as the one before has ended: none waits for a port of the last one."""
    job.write_text(job.read_text().replace(f"epochs: {EPOCHS}", "epochs: 1"))
    path = script(job, "--dependency=singleton")
    numbers = [slurm.submit(path) for _ in range(20)]
    for number in numbers:
        ended = slurm.wait_for_end(number, 1200)
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), log(job, number)
    places = [line for number in numbers for line in log(job, number).splitlines() if "placement:" in line]
    print(f"20 jobs, {len({line.partition('meeting at')[2].split()[0] for line in places})} meeting places")
    assert len(list((job.parent / "runs").glob("tiny-*"))) == 20


def test_scancel_saves_and_is_not_queued_again(slurm: SlurmCluster, job: Path) -> None:
    number = slurm.submit(script(job, "--nodes=1"))
    wait_until(lambda: trains(job, 10), 300)
    slurm.run("scancel", number)
    ended = slurm.wait_for_end(number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0"), log(job, number)
    wait_until(lambda: "exit 75, ended by Slurm" in log(job, number), 60)
    assert "stopped by SIGTERM" in log(job, number)


def kill_node(slurm: SlurmCluster, index: int, number: str, *, cut: bool) -> None:
    """Everything on a node is gone at once, Slurm's daemon too; cut: without a word to those it is connected with."""
    if cut:
        slurm.machines[index].cut()
    for process in processes(slurm.machines[index].name, number):
        process.kill()
    for started in slurm.machines[index].started:
        started.send_signal(signal.SIGKILL)


def test_a_dead_node_does_not_hold_the_job(slurm: SlurmCluster, job: Path, reference: Path) -> None:
    """Last: the node is gone afterwards."""
    number = slurm.submit(script(job))
    wait_until(lambda: trains(job, 10), 300)
    begin = time.monotonic()
    kill_node(slurm, 1, number, cut=True)
    wait_until(lambda: "a node is lost" in log(job, number), 300, 0.5)
    print(f"dead node: queued again after {time.monotonic() - begin:.0f} s")
    ended = slurm.wait_for_end(number, 900)
    print(f"dead node: ended after {time.monotonic() - begin:.0f} s on {ended['NodeList']}")
    assert ended["JobState"] == "COMPLETED", log(job, number)
    assert have_same_weights(reference, run_of(job))
