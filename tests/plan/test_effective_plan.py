"""The plan in force: what was settled and measured stays when the trainer is killed for memory and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.distributed import world
from runtime.errors import Replanned
from runtime.hardware import cgroup
from runtime.models.build import build
from runtime.models.inspection import inspect_workload
from runtime.plan import effective_plan, final_plan, plan
from runtime.supervisor import supervisor
from runtime.supervisor.train_request import TrainRequest
from runtime.system import signals
from runtime.system.files import read_json, write_json
from runtime.training.checkpoints import resume
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
        self, request: Any, count: int, environment: Any, forward: Any, run: Any, words: Sequence[str] = (), **more: Any
    ) -> int:
        given = plan.load(self.run / "plan.json")
        self.plans.append(given)
        self.words.append(list(words))
        if len(self.plans) == 1 and self.begins:
            rows = [
                replace(row, value=self.settled[row.name], source="measured") if row.name in self.settled else row
                for row in given.decisions
            ]
            given = replace(given, decisions=tuple(rows), seen={"micro_batch": {"asked": "off", "seen": "off"}})
            write_json(self.run / "plan.json", given.to_json())
        if self.begins:
            folder = self.run / "checkpoints" / "step-4"
            folder.mkdir(parents=True, exist_ok=True)
            value = given.value("micro_batch")
            left = self.smaller.get(len(self.plans), None if value == "off" else value)
            write_json(folder / "state.json", {"micro_batch": left})
        code = self.ends[len(self.plans) - 1]
        self.kills += code == KILLED
        return code


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A supervisor ignores signals once its run is over; this process has more to do."""
    before = {number: signal.getsignal(number) for number in (*signals.WATCHED, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text("name: tiny\n")
    run = tmp_path / "tiny-001"
    run.mkdir()
    return run


def attempted(trainers: Trainers, monkeypatch: pytest.MonkeyPatch, optimize: str = "") -> int:
    machine, job = tiny.machine(), tiny.job(optimize=optimize)
    monkeypatch.setattr(supervisor, "_trainers", trainers)
    monkeypatch.setattr(cgroup, "oom_kills", lambda root: trainers.kills)
    run = supervisor.run_folder.RunFolder(trainers.run, False, -1)
    request = TrainRequest(trainers.run.parent / "tiny.yaml")
    return supervisor._attempts(request, job, machine, plan.resolve(job, machine), run)


def row(of: plan.Plan, name: str) -> plan.Decision:
    return next(row for row in of.decisions if row.name == name)


def test_after_a_kill_for_memory_the_settled_plan_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, 0, micro_batch=8, precision="bf16", channels_last=True)
    assert attempted(trainers, monkeypatch) == 0
    again = trainers.plans[1]
    assert (again.value("micro_batch"), again.value("precision"), again.value("channels_last")) == (4, "bf16", True)
    assert row(again, "precision").source == "measured"
    assert row(again, "micro_batch").reason.endswith("with 8 at a time")
    assert again.seen == {}


def test_several_processes_halve_the_part_that_each_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "trainers", lambda job, machine: 4)  # of 16 samples each computes 4
    trainers = Trainers(folder, KILLED, KILLED, 0)
    assert attempted(trainers, monkeypatch) == 0
    assert [given.value("micro_batch") for given in trainers.plans] == ["off", 2, 1]


def test_a_second_oom_kill_halves_the_micro_batch_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, KILLED, 0, micro_batch=8)
    assert attempted(trainers, monkeypatch) == 0
    assert [given.value("micro_batch") for given in trainers.plans] == ["off", 4, 2]


def test_a_micro_batch_reduced_by_the_trainer_is_halved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, KILLED, 0)
    trainers.smaller = {1: 4}  # of 16: it ran out of memory in a step, and later it was killed
    assert attempted(trainers, monkeypatch) == 0
    assert trainers.plans[1].value("micro_batch") == 2


def test_a_trainer_that_is_killed_while_it_measures_is_tried_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = Trainers(folder, KILLED, KILLED, 0)
    trainers.begins = False
    assert attempted(trainers, monkeypatch) == 0
    assert trainers.words == [[], ["--measured"], ["--measured"]]
    assert [given.value("micro_batch") for given in trainers.plans] == ["off", "off", 8]


def test_nothing_is_tried_without_measuring_that_measures_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = Trainers(folder, KILLED, 0)
    trainers.begins = False
    assert attempted(trainers, monkeypatch, optimize="measure: off") == 0
    assert [given.value("micro_batch") for given in trainers.plans] == ["off", 8]


def test_a_new_process_for_the_final_plan_does_not_measure_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, Replanned.exit_code, KILLED, 0, micro_batch=8)
    assert attempted(trainers, monkeypatch) == 0
    assert [given.value("micro_batch") for given in trainers.plans] == ["off", 8, 4]
    assert trainers.words == [[], ["--measured"], ["--measured"]]


def test_the_effective_plan_has_what_a_checkpoint_learned(folder: Path) -> None:
    write_json(folder / "plan.json", plan.resolve(tiny.job(), tiny.machine()).to_json())
    for step, left in ((9, 8), (10, 2)):
        (folder / "checkpoints" / f"step-{step}").mkdir(parents=True)
        write_json(folder / "checkpoints" / f"step-{step}" / "state.json", {"micro_batch": left})
    known = row(effective_plan.plan_of(folder), "micro_batch")
    assert (known.value, known.source) == (2, "memory")
    assert known.reason == "out of memory with a micro-batch above 2"
    assert read_json(folder / "plan.json")["seen"] == {}


def test_a_requested_micro_batch_that_memory_halved_is_not_reported_as_changed(tmp_path: Path) -> None:
    job, machine, data, said = tiny.job(optimize="micro_batch: 16"), tiny.machine(), tiny.dataset(), list[str]()
    smaller = plan.smaller(plan.resolve(job, machine), 16, "killed")
    assert smaller is not None
    settled = final_plan.settle(job, machine, smaller, inspect_workload(data, build(job, data).module), said.append)
    assert settled.value("micro_batch") == 8
    assert not [line for line in said if "micro_batch is" in line]


def test_a_new_cap_on_the_instruction_set_is_reported_on_resume() -> None:
    machine, data = tiny.machine(), tiny.dataset()
    free, held = (replace(machine, cpu=replace(machine.cpu, capped=cap)) for cap in (None, "ONEDNN_MAX_CPU_ISA=AVX2"))
    before, now = (resume.identity(each, data) for each in (free, held))
    assert [line.partition(":")[0] for line in resume.changes(before, now)] == [
        f"cpu is {machine.cpu.model}, kept back by ONEDNN_MAX_CPU_ISA=AVX2, was {machine.cpu.model}"
    ]
