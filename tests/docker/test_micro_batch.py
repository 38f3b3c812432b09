"""`micro_batch: auto` under a memory limit: no kill, close to what really fits, and the bits of naming that size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.docker.conftest import Run
from tests.docker.limited_run import TEXT, job, read_decision, train
from tests.messages import omits, says
from tests.supervisor.tiny_run import load_weights

__all__ = ["job"]
pytestmark = pytest.mark.cgroup
LIMIT = 900 << 20
LARGE = TEXT.replace("batch_size: 64", "batch_size: 120").replace("width: 8", "width: 12")
"""The whole batch takes half as much again as there is. The samples take much more than what the search leaves free: its
headroom, and pages of libraries in use, which the kernel would give up before it kills.
"""


@pytest.mark.nightly
def test_auto_trains_within_the_limit(container: Run, job: Path) -> None:
    (job / "large.yaml").write_text(LARGE.replace("measure: off", "measure: off, micro_batch: auto"))
    code, log = train(container, job, LIMIT)
    assert code == 0, log
    assert omits(log, "killed-memory-limit-2")
    run = job / "runs" / "large-001"
    micro_batch = read_decision(run, "micro_batch")
    print(next(line for line in log.splitlines() if line.startswith("fit: ")))
    assert 16 < micro_batch < 120
    rows = json.loads((run / "plan.json").read_text())["decisions"]
    row = next(row for row in rows if row["name"] == "micro_batch")
    assert (row["source"], row["effect"]) == ("measured", "training")
    assert says(row["evidence"], "whole-batch-fit-batchnorm")
    too_much_is_killed(container, job, micro_batch)
    same_as_naming_it(container, job, run, micro_batch)


def too_much_is_killed(container: Run, job: Path, micro_batch: int) -> None:
    """Half as much again does not fit, so what was found is within 1.5x of the largest that does."""
    (job / "large.yaml").write_text(LARGE.replace("measure: off", f"measure: off, micro_batch: {micro_batch * 3 // 2}"))
    code, log = train(container, job, LIMIT)
    assert code == 0, log
    assert says(log, "killed-memory-limit-mib", 900)


def same_as_naming_it(container: Run, job: Path, run: Path, micro_batch: int) -> None:
    (job / "large.yaml").write_text(LARGE.replace("measure: off", f"measure: off, micro_batch: {micro_batch}"))
    code, log = train(container, job, None)
    assert code == 0, log
    one, two = load_weights(run), load_weights(job / "runs" / "large-003")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (run / "metrics.jsonl").read_bytes() == (job / "runs" / "large-003" / "metrics.jsonl").read_bytes()
