"""Starters of other projects run our command on each process: torchrun, accelerate, Ray Train.

accelerate: pip install --no-deps --target DIR accelerate && DRIVETRAIN_ACCELERATE=DIR python -m pytest -m nightly THIS_FILE
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import nodes
from tests.messages import says
from tests.paths import IMPORTS, ROOT
from tests.supervisor.tiny_run import command, have_same_weights, read_rows, train
from tests.waiting import wait_until

PORT = 29411
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ACCELERATE = os.environ.get("DRIVETRAIN_ACCELERATE", "")


@pytest.fixture
def reference(job: Path) -> Path:
    """A run of two processes on one machine, started by our own command."""
    folder = job.parent / "reference"
    done = train(job, "--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", str(folder))
    assert done.returncode == 0, done.stderr
    return folder / "tiny-001"


def module(job: Path, *options: str) -> list[str]:
    """Our command, as a starter takes it that starts Python itself."""
    return command(job, *options)[1:]


def status(run: Path) -> str:
    return str(json.loads((run / "state.json").read_text())["status"])


def torchrun(machines: Sequence[nodes.Node], arguments: Sequence[str], folder: Path) -> list[subprocess.Popen[bytes]]:
    """The agents of torchrun, one on each machine, each with one process."""
    agent_options = ["--nnodes", str(len(machines)), "--nproc-per-node", "1", "--master-port", str(PORT)]
    agent_options += ["--master-addr", machines[0].address]
    return [
        machine.start(
            [*TORCHRUN, *agent_options, "--node-rank", str(number), *arguments], folder / f"{machine.name}.log"
        )
        for number, machine in enumerate(machines)
    ]


@pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
def test_torchrun_on_two_nodes_gives_the_bits_of_two_processes(job: Path, reference: Path) -> None:
    with nodes.network(2) as machines:
        agents = torchrun(machines, module(job), job.parent)
        codes_and_log = [agent.wait(180) for agent in agents], (job.parent / "node0.log").read_text()
    assert codes_and_log[0] == [0, 0], codes_and_log[1]
    assert says(codes_and_log[1], "rank-world-size-torchrun")
    run = job.parent / "runs" / "tiny-001"
    assert status(run) == "done"
    assert have_same_weights(reference, run)
    assert read_rows(reference) == read_rows(run)


@pytest.mark.nightly
@pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
def test_a_stop_under_torchrun_is_in_our_record(job: Path) -> None:
    """torchrun makes 1 of every exit code; the run folder says what happened, and the same command resumes."""
    job.write_text(job.read_text().replace("epochs: 4", "epochs: 60"))
    folder = job.parent / "reference"
    assert train(job, "--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", str(folder)).returncode == 0
    run = job.parent / "runs" / "tiny-001"
    with nodes.network(2) as machines:
        agents = torchrun(machines, module(job), job.parent)
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10, 120)
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        codes = [agent.wait(120) for agent in agents]
        print(f"torchrun ended with {codes}, the run is {status(run)}")
        assert status(run) == "stopped"
        assert [agent.wait(180) for agent in torchrun(machines, module(job), job.parent)] == [0, 0]
    assert status(run) == "done"
    assert have_same_weights(folder / "tiny-001", run)


@pytest.mark.nightly
@pytest.mark.skipif(not ACCELERATE, reason="DRIVETRAIN_ACCELERATE names no folder with accelerate")
def test_accelerate_gives_the_bits_of_two_processes(job: Path, reference: Path) -> None:
    # With --cpu it starts one process, or mpirun; with --multi_gpu it starts torchrun, on a machine without GPUs, too.
    arguments = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    arguments += ["--num_machines", "1"]
    arguments += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(PORT)]
    environ = os.environ | {"PYTHONPATH": f"{IMPORTS}:{ACCELERATE}", "HF_HOME": str(job.parent / "hub")}
    done = subprocess.run(
        [sys.executable, *arguments, *module(job)], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "rank-world-size-torchrun")
    run = job.parent / "runs" / "tiny-001"
    assert status(run) == "done"
    assert have_same_weights(reference, run)
    assert read_rows(reference) == read_rows(run)
