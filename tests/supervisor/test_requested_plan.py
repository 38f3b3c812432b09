"""--plain and --plan on a run that goes on: the plan of its first step stays in force, and another one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import CheckpointError
from drivetrain.plan import plan
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.system.run_records import RunState
from tests import tiny
from tests.faults import small_job
from tests.messages import says

STOPPED = {"FAULT": "step:10:term"}


def resolve_plan(plain: bool = False) -> plan.Plan:
    return plan.resolve(tiny.job(), tiny.machine(), plain=plain)


PLAIN, CHOSEN = resolve_plan(plain=True).values(), resolve_plan().values()
OTHER = CHOSEN | {"precision": "bf16"}


def test_what_changes_the_plan_of_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    """Processes from end to end; everything else of it is below."""
    job = small_job.write_job(tmp_path, epochs="4")
    small_job.finish(job, expected=75, **STOPPED)
    before = small_job.read_json(small_job.newest_run(job), "plan.json")["decisions"]
    output = small_job.finish(job, "--plain", expected=4)
    assert says(output, "started-without-plain-plan", "small-001")
    assert says(output, "run-without-plain-plan")
    assert small_job.read_json(small_job.newest_run(job), "plan.json")["decisions"] == before
    small_job.finish(job, "--plan", str(small_job.newest_run(job) / "plan.json"))
    assert small_job.read_json(small_job.newest_run(job), "state.json")["plan"] is None


@pytest.mark.nightly
def test_a_plain_run_resumes_plain(tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path, epochs="4")
    small_job.finish(job, "--plain", expected=75, **STOPPED)
    assert says(small_job.finish(job, expected=4), "started-plain-command-without")
    small_job.finish(job, "--plain")
    assert {row["source"] for row in small_job.read_json(small_job.newest_run(job), "plan.json")["decisions"]} == {
        "plain"
    }


@pytest.mark.parametrize(
    ("state", "plan_request", "expected"),
    [
        ({"plain": False, "plan": None}, PlanRequest(False, None), None),
        (
            {"plain": False, "plan": None},
            PlanRequest(True, None),
            "started without --plain and --plan; this command is with --plain",
        ),
        (
            {"plain": False, "plan": None},
            PlanRequest(False, OTHER),
            "started without --plain and --plan; this command is with --plan",
        ),
        ({"plain": False, "plan": None}, PlanRequest(False, CHOSEN), None),
        ({"plain": False, "plan": OTHER}, PlanRequest(False, OTHER), None),
        (
            {"plain": False, "plan": OTHER},
            PlanRequest(False, None),
            "started with --plan; this command is without --plain and --plan",
        ),
        (
            {"plain": False, "plan": OTHER},
            PlanRequest(False, OTHER | {"precision": "fp16"}),
            "started with --plan; this command is with another, in which precision is fp16, not bf16",
        ),
        ({}, PlanRequest(False, None), None),
        ({}, PlanRequest(False, OTHER), None),
        ({}, PlanRequest(True, None), "started without --plain and --plan; this command is with --plain"),
    ],
)
def test_plan_request_of_a_run(state: dict[str, Any], plan_request: PlanRequest, expected: str | None) -> None:
    if expected is None:
        assert plan_request.resume(Path("x-001"), RunState(state), resolve_plan()) == PlanRequest(
            False, state.get("plan", plan_request.plan)
        )
        return
    with pytest.raises(CheckpointError, match=expected):
        plan_request.resume(Path("x-001"), RunState(state), resolve_plan())


def test_a_plain_run_whose_state_is_damaged_is_recognized_by_its_plan() -> None:
    plain_plan = resolve_plan(plain=True)
    rows = [replace(row, source="memory") if row.name == "micro_batch" else row for row in plain_plan.decisions]
    for stored_plan in (plain_plan, replace(plain_plan, decisions=tuple(rows))):
        assert PlanRequest(True, None).resume(Path("x-001"), RunState({}), stored_plan) == PlanRequest(True, None)
        with pytest.raises(CheckpointError, match="started with --plain"):
            PlanRequest(False, None).resume(Path("x-001"), RunState({}), stored_plan)
