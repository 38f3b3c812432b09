"""`docker kill` at random moments: the next container goes on, and the end has the bits of a run left in peace."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults import small_job
from tests.paths import ROOT

NIGHTLY = int(os.environ.get("DRIVETRAIN_DOCKER_KILLS", "40"))
FIRST = int(os.environ.get("DRIVETRAIN_FIRST", "0"))


def container(image: str, job: Path, name: str) -> subprocess.Popen[str]:
    """The job with its witness in a hardened container; the checkout's own code."""
    line = [
        "docker",
        "run",
        "--rm",
        "--name",
        name,
        "--init",
        "--read-only",
        "--cap-drop=ALL",
        "--network=none",
        "--security-opt=no-new-privileges:true",
        "--tmpfs=/tmp:exec,mode=1777",
        "-e",
        "LEDGER=/job/ledger.jsonl",
        # Whether bf16 is faster is measured by each run, on a machine where other tests run.
        "-e",
        "ONEDNN_MAX_CPU_ISA",
        "-v",
        f"{job.parent}:/job",
        "-v",
        f"{ROOT}/runtime:/opt/drivetrain/runtime:ro",
        "-v",
        f"{ROOT}/tests:/opt/drivetrain/tests:ro",
        "--entrypoint",
        "python",
        image,
        "-m",
        "tests.faults.driver",
        "train",
        "/job/small.yaml",
        "--runs",
        "/job/runs",
    ]
    with (job.parent / "job.log").open("a") as log:
        return subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, text=True)


def prepare_job(folder: Path) -> Path:
    job = small_job.write_job(folder)
    (folder / "runs").mkdir()
    for path in (folder, folder / "runs"):
        path.chmod(0o777)
    return job


def kill_until_done(image: str, job: Path, draw: random.Random, kills: int, length: float) -> int:
    """Start, kill and start again until the run is done; how often it was killed."""
    done = 0
    while small_job.read_status(job) != "done":
        name = f"drivetrain-kill-{os.getpid()}-{draw.getrandbits(32)}"
        process = container(image, job, name)
        try:
            code = process.wait(timeout=draw.uniform(0.5, length) if done < kills else 300)
            assert code == 0, (job.parent / "job.log").read_text()
        except subprocess.TimeoutExpired:
            struck = subprocess.run(["docker", "kill", name], capture_output=True, check=False).returncode == 0
            done += struck
            assert process.wait(timeout=60) in (0, 125, 137), (job.parent / "job.log").read_text()
    return done


@pytest.fixture(scope="module")
def undisturbed_run(cpu_image: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nobody killed, in a container, and its seconds."""
    folder = tmp_path_factory.mktemp("calm")
    folder.parent.chmod(0o755)
    job, begun = prepare_job(folder), time.monotonic()
    assert container(cpu_image, job, f"drivetrain-calm-{os.getpid()}").wait(timeout=300) == 0, (
        folder / "job.log"
    ).read_text()
    return small_job.newest_run(job), time.monotonic() - begun


def check(job: Path, undisturbed_run: Path) -> None:
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []
    assert small_job.ledger_faults(job) == []
    assert small_job.leftovers(small_job.newest_run(job)) == []


def test_docker_kill(cpu_image: str, tmp_path: Path, undisturbed_run: tuple[Path, float]) -> None:
    job = prepare_job(tmp_path)
    kill_until_done(cpu_image, job, random.Random(1), 2, undisturbed_run[1])
    check(job, undisturbed_run[0])


@pytest.mark.nightly
def test_many_docker_kills(cpu_image: str, tmp_path: Path, undisturbed_run: tuple[Path, float]) -> None:
    done = runs = 0
    while done < NIGHTLY:
        runs += 1
        (tmp_path / str(runs)).mkdir()
        job = prepare_job(tmp_path / str(runs))
        draw = random.Random(2000 + FIRST + runs)
        done += kill_until_done(cpu_image, job, draw, min(draw.randint(1, 5), NIGHTLY - done), undisturbed_run[1])
        check(job, undisturbed_run[0])
    print(f"{done} docker kills in {runs} runs, every run bit-identical")
