"""The plan in force: what was settled and measured stays when the trainer is killed for memory and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.distributed import world
from drivetrain.errors import Replanned
from drivetrain.models.build import build
from drivetrain.models.inspection import inspect_workload
from drivetrain.plan import effective_plan, final_plan, plan
from drivetrain.system import signals
from drivetrain.system.files import read_json, write_json
from drivetrain.training.checkpoints import resume
from tests import tiny
from tests.messages import get_message, says_each, says_only
from tests.plan.attempted_trainers import ATTEMPT, KILLED, Trainers, find_decision, folder, run_attempts

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def restore_handlers() -> Iterator[None]:
    """A supervisor ignores signals once its run is over; this process has more to do."""
    before = {number: signal.getsignal(number) for number in (*signals.HANDLED_SIGNALS, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_after_a_kill_for_memory_the_settled_plan_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, 0, micro_batch=8, precision="bf16", channels_last=True)
    assert run_attempts(trainers, monkeypatch) == 0
    second_plan = trainers.plans[1]
    assert (second_plan.value("micro_batch"), second_plan.value("precision"), second_plan.value("channels_last")) == (
        4,
        "bf16",
        True,
    )
    assert find_decision(second_plan, "precision").source == "measured"
    assert find_decision(second_plan, "micro_batch").reason.endswith("with 8 at a time")
    assert second_plan.seen == {}


def test_several_processes_halve_the_part_that_each_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "count_trainers", lambda job, machine: 4)  # of 16 samples each computes 4
    trainers = Trainers(folder, KILLED, KILLED, 0)
    assert run_attempts(trainers, monkeypatch) == 0
    assert [attempt_plan.value("micro_batch") for attempt_plan in trainers.plans] == ["off", 2, 1]


def test_a_second_oom_kill_halves_the_micro_batch_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, KILLED, 0, micro_batch=8)
    assert run_attempts(trainers, monkeypatch) == 0
    assert [attempt_plan.value("micro_batch") for attempt_plan in trainers.plans] == ["off", 4, 2]


def test_a_micro_batch_reduced_by_the_trainer_is_halved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, 0)
    trainers.reduced_micro_batches = {1: 4}  # of 16: it ran out of memory in a step, and later it was killed
    assert run_attempts(trainers, monkeypatch) == 0
    assert trainers.plans[1].value("micro_batch") == 2


def test_a_trainer_that_is_killed_while_it_measures_is_tried_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = Trainers(folder, KILLED, KILLED, 0)
    trainers.writes_checkpoint = False
    assert run_attempts(trainers, monkeypatch) == 0
    assert trainers.arguments == [[], ["--measured"], ["--measured"]]
    assert [attempt_plan.value("micro_batch") for attempt_plan in trainers.plans] == ["off", "off", 8]


def test_nothing_is_tried_without_measuring_that_measures_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = Trainers(folder, KILLED, 0)
    trainers.writes_checkpoint = False
    assert run_attempts(trainers, monkeypatch, optimize="measure: off") == 0
    assert [attempt_plan.value("micro_batch") for attempt_plan in trainers.plans] == ["off", 8]


def test_a_new_process_for_the_final_plan_does_not_measure_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, Replanned.exit_code, KILLED, 0, micro_batch=8)
    assert run_attempts(trainers, monkeypatch) == 0
    assert [attempt_plan.value("micro_batch") for attempt_plan in trainers.plans] == ["off", 8, 4]
    assert trainers.arguments == [[], ["--measured"], ["--measured"]]


def test_the_effective_plan_has_what_a_checkpoint_learned(folder: Path) -> None:
    write_json(folder / "plan.json", plan.resolve(tiny.job(), tiny.machine()).to_json())
    for step, micro_batch in ((9, 8), (10, 2)):
        (folder / "checkpoints" / f"step-{step}").mkdir(parents=True)
        write_json(folder / "checkpoints" / f"step-{step}" / "state.json", {"micro_batch": micro_batch})
    decision = find_decision(effective_plan.load_plan(folder), "micro_batch")
    assert (decision.value, decision.source) == (2, "memory")
    assert says_only(decision.reason, "memory-micro-batch-above", 2)
    assert read_json(folder / "plan.json")["seen"] == {}


def test_a_requested_micro_batch_that_memory_halved_is_not_reported_as_changed(tmp_path: Path) -> None:
    job, machine, data, messages = tiny.job(optimize="micro_batch: 16"), tiny.machine(), tiny.dataset(), list[str]()
    halved_plan = plan.halve_micro_batch(plan.resolve(job, machine), 16, "killed")
    assert halved_plan is not None
    settled_plan = final_plan.finalize(
        job, machine, halved_plan, inspect_workload(data, build(job, data).module), messages.append
    )
    assert settled_plan.value("micro_batch") == 8
    assert not [line for line in messages if "micro_batch is" in line]


def test_a_new_cap_on_the_instruction_set_is_reported_on_resume() -> None:
    machine, data = tiny.machine(), tiny.dataset()
    uncapped, capped = (
        replace(machine, cpu=replace(machine.cpu, capped=cap)) for cap in (None, "ONEDNN_MAX_CPU_ISA=AVX2")
    )
    old_identity, new_identity = (resume.collect_identity(hardware, data) for hardware in (uncapped, capped))
    assert says_each(
        [line.partition(":")[0] for line in resume.list_changes(old_identity, new_identity)],
        [get_message("cpu-kept-back-onednn", machine.cpu.model)],
    )


@pytest.mark.parametrize(("attempt", "code"), [(ATTEMPT, 0), (ATTEMPT - 1, 9)])
def test_a_trainer_that_fails_after_its_result_has_completed_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempt: int, code: int
) -> None:
    """The result of an earlier attempt does not count, however new its file is."""
    write_json(folder / "result.json", {"attempt": attempt})
    assert run_attempts(Trainers(folder, 9), monkeypatch) == code
