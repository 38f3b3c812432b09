"""Trainers that fail with some settings, and the run folder they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivetrain.hardware import cgroup
from drivetrain.plan import plan
from drivetrain.supervisor import run_folder, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system.files import write_json
from tests import tiny

KILLED = 137


class Trainers:
    """Stands in for the trainers of one run: each leaves a plan and a checkpoint behind, and ends as it is told."""

    def __init__(self, run: Path, *ends: int, **settled: Any) -> None:
        self.run, self.ends, self.settled = run, list(ends), settled
        self.kills, self.smaller = 0, dict[int, int]()
        """`smaller`: by attempt, the micro-batch that the trainer itself has gone down to."""
        self.plans, self.words = list[plan.Plan](), list[list[str]]()
        self.begins = True

    def __call__(
        self,
        request: Any,
        count: int,
        environment: Any,
        forward: Any,
        run: Any,
        arguments: Sequence[str] = (),
        **options: Any,
    ) -> int:
        trained_plan = plan.load(self.run / "plan.json")
        self.plans.append(trained_plan)
        self.words.append(list(arguments))
        if len(self.plans) == 1 and self.begins:
            rows = [
                replace(row, value=self.settled[row.name], source="measured") if row.name in self.settled else row
                for row in trained_plan.decisions
            ]
            trained_plan = replace(
                trained_plan, decisions=tuple(rows), seen={"micro_batch": {"asked": "off", "seen": "off"}}
            )
            write_json(self.run / "plan.json", trained_plan.to_json())
        if self.begins:
            folder = self.run / "checkpoints" / "step-4"
            folder.mkdir(parents=True, exist_ok=True)
            value = trained_plan.value("micro_batch")
            micro_batch = self.smaller.get(len(self.plans), None if value == "off" else value)
            write_json(folder / "state.json", {"micro_batch": micro_batch})
        code = self.ends[len(self.plans) - 1]
        self.kills += code == KILLED
        return code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text("name: tiny\n")
    run = tmp_path / "tiny-001"
    run.mkdir()
    return run


def run_attempts(trainers: Trainers, monkeypatch: pytest.MonkeyPatch, optimize: str = "") -> int:
    machine, job = tiny.machine(), tiny.job(optimize=optimize)
    monkeypatch.setattr(supervisor, "run_trainers", trainers)
    monkeypatch.setattr(cgroup, "read_oom_kills", lambda root: trainers.kills)
    run = run_folder.RunFolder(trainers.run, False, -1)
    request = TrainRequest(trainers.run.parent / "tiny.yaml")
    return supervisor._attempts(request, job, machine, plan.resolve(job, machine), run)


def find_decision(of: plan.Plan, name: str) -> plan.Decision:
    return next(row for row in of.decisions if row.name == name)
