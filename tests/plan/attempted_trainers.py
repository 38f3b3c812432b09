"""Trainers that fail with some settings, and the run folder they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivetrain.hardware import cgroup
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan
from drivetrain.supervisor import run_folder, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system.files import write_json
from tests import tiny

KILLED = 137
ATTEMPT = 2
"""Number of the attempt in which all trainers are started."""


class Trainers:
    """Stands in for the trainers of one run: each leaves a plan and a checkpoint behind, and ends as it is told."""

    def __init__(self, run: Path, *exit_codes: int, **measured: Any) -> None:
        self.run, self.exit_codes, self.measured = run, list(exit_codes), measured
        self.kills, self.reduced_micro_batches = 0, dict[int, int]()
        """`reduced_micro_batches`: by attempt, the micro-batch that the trainer itself has gone down to."""
        self.plans, self.arguments = list[plan.Plan](), list[list[str]]()
        self.writes_checkpoint = True

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
        self.arguments.append(list(arguments))
        if len(self.plans) == 1 and self.writes_checkpoint:
            rows = [
                replace(row, value=self.measured[row.name], source="measured") if row.name in self.measured else row
                for row in trained_plan.decisions
            ]
            trained_plan = replace(
                trained_plan, decisions=tuple(rows), seen={"micro_batch": {"asked": "off", "seen": "off"}}
            )
            write_json(self.run / "plan.json", trained_plan.to_json())
        if self.writes_checkpoint:
            folder = self.run / "checkpoints" / "step-4"
            folder.mkdir(parents=True, exist_ok=True)
            value = trained_plan.value("micro_batch")
            micro_batch = self.reduced_micro_batches.get(len(self.plans), None if value == "off" else value)
            write_json(folder / "state.json", {"micro_batch": micro_batch})
        code = self.exit_codes[len(self.plans) - 1]
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
    request = TrainRequest(SpecSource(trainers.run.parent / "tiny.yaml"))
    return supervisor._run_attempt(request, job, machine, plan.resolve(job, machine), run, ATTEMPT)


def find_decision(job_plan: plan.Plan, name: str) -> plan.Decision:
    return next(row for row in job_plan.decisions if row.name == name)
