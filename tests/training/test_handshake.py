"""Processes that introduce themselves before a run: the leader's plan and checkpoints count, not a process's own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from drivetrain.distributed.world import WORLD_SIZE
from drivetrain.plan import plan
from drivetrain.training import handshake, start_checks
from drivetrain.training.checkpoints.checkpoint import can_resume
from tests import tiny


@pytest.mark.parametrize("resumes", [False, True])
def test_a_process_takes_plan_and_resume_from_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    monkeypatch.setenv(WORLD_SIZE, "2")
    leader, other = tmp_path / "leader", tmp_path / "other"
    for folder in (leader, other):
        folder.mkdir()
        (folder / "hardware.json").write_text(json.dumps(tiny.machine().to_json()))
        (folder / "plan.json").write_text(json.dumps({"made by": folder.name}))
    # An earlier attempt in which the roles were others.
    ((leader if resumes else other) / "checkpoints" / "step-5").mkdir(parents=True)
    store, job = torch.distributed.HashStore(), tiny.job()  # type: ignore[attr-defined]
    lead = threading.Thread(target=handshake._lead_processes, args=(leader, job, 2, store, print))
    lead.start()
    handshake._follow_leader(other, job, 1, store, print)
    lead.join()
    assert json.loads((other / "plan.json").read_text()) == {"made by": "leader"}
    assert can_resume(leader) is can_resume(other) is resumes


def test_the_plan_of_rank_0_counts() -> None:
    """A machine with less memory may have chosen another place for cached features."""
    local_plan = plan.resolve(tiny.job(), tiny.machine(), None, plain=True)
    leader_values = local_plan.values() | {"feature_cache": True}
    ranks = Mock(broadcast_text=lambda text: json.dumps(leader_values))
    adopted_plan = start_checks.adopt_plan(ranks, local_plan)
    assert adopted_plan.values() == leader_values != local_plan.values()
