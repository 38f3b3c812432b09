"""The memory limit of a container: a kill is recognised, explained, and answered with half the micro-batch.

On cgroup v1 or v2, whichever the engine has; the other version's counters are tested on recorded trees (test_cgroup).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docker.conftest import Run
from tests.docker.limited_run import TEXT, job, read_decision, train
from tests.messages import get_message, says
from tests.paths import ROOT
from tests.supervisor.tiny_run import load_weights

__all__ = ["job"]

pytestmark = pytest.mark.cgroup


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


@pytest.mark.nightly
def test_four_fifths_of_the_need(container: Run, job: Path) -> None:
    code, log = train(container, job, None)
    assert code == 0, log
    need = result(job / "runs" / "large-001")["peak_memory"]
    code, log = train(container, job, int(need * 0.8))
    assert code == 0, log
    run = job / "runs" / "large-002"
    micro_batch = read_decision(run, "micro_batch")
    print(f"peak {need >> 20} MiB; with {int(need * 0.8) >> 20} MiB it went on with micro-batch {micro_batch}")
    assert micro_batch in (32, 16, 8)
    assert says(log, "killed-memory-limit")
    assert says(log, "as-it-is", "train.batch_size")
    assert (result(run)["steps"], result(run)["epochs"]) == (2, 1)
    assert "batch_size: 64" in (run / "job.yaml").read_text()
    same_as_naming_it(container, job, run, micro_batch)


def same_as_naming_it(container: Run, job: Path, run: Path, micro_batch: int) -> None:
    """The kill came in the first step, so the retry is a run from the first checkpoint with that micro-batch."""
    events = [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert sum(get_message("killed-memory-limit-2") in text for text in events) == len(events)
    (job / "large.yaml").write_text(TEXT.replace("measure: off", f"measure: off, micro_batch: {micro_batch}"))
    code, log = train(container, job, None)
    assert code == 0, log
    one, two = load_weights(run), load_weights(job / "runs" / "large-003")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (run / "metrics.jsonl").read_bytes() == (job / "runs" / "large-003" / "metrics.jsonl").read_bytes()


@pytest.mark.nightly
def test_memory_too_small_for_one_sample(container: Run, job: Path) -> None:
    """Exit 6 with limit, peak and advice; the run folder stays and goes on under a higher limit."""
    # Weights alone far above the limit: near it the kernel reads dropped pages of libraries again and again instead.
    weights = TEXT.replace("batch_size: 64", "batch_size: 2").replace("width: 8", "width: 320")
    (job / "large.yaml").write_text(weights.replace("validation: 0.1", "validation: 0.1, image_size: 16"))
    code, log = train(container, job, 220 << 20)
    assert code == 6, log
    assert "with micro-batch 1" in log
    assert "raise limits.memory" in log
    code, log = train(container, job, None)
    assert code == 0, log


STAND_IN = """
import json, subprocess, sys
from pathlib import Path
from drivetrain.supervisor import supervisor
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor.supervisor import TrainRequest

def train(request, count, environment, forward, run, arguments=()):
    plan = json.loads((run.path / "plan.json").read_text())
    is_whole = next(row["value"] for row in plan["decisions"] if row["name"] == "micro_batch") == "off"
    program = f"memory = b'x' * ({600 if is_whole else 6} << 20)"
    return abs(subprocess.run([sys.executable, "-S", "-c", program]).returncode) and 137

supervisor.run_trainers = train
sets = ("train.epochs=1", "optimize.measure=off")
sys.exit(supervisor.train(TrainRequest(SpecSource(Path("jobs/digits.yaml"), sets), Path("/job/runs"))))
"""
"""The supervisor over a trainer without torch, that takes more than there is unless the micro-batch is small."""


def test_a_trainer_without_torch(container: Run, job: Path) -> None:
    """The same in seconds, for emulated hosts: who was killed, at which limit, and what is tried instead."""
    options = ("--memory=300m", "--memory-swap=300m", "-v", f"{job}:/job", "-v", f"{ROOT}/jobs:/workspace/jobs:ro")
    code = ("-v", f"{ROOT}/runtime:/opt/drivetrain/runtime:ro")
    done = container("-c", STAND_IN, options=(*options, *code), entrypoint="python")
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "trainer-killed-memory-limit", 300)
    assert read_decision(job / "runs" / "digits-001", "micro_batch") == 16
