"""Every optimization with streamed data: the same choice and the same losses, or off with a reason that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain import optimizations
from drivetrain.data.load_data import load
from drivetrain.hardware import facts as hardware
from drivetrain.job import Job
from drivetrain.job.model import Freeze
from drivetrain.models.build import build
from drivetrain.models.inspection import inspect_workload
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan import plan
from drivetrain.training import run
from drivetrain.training.phase_timer import PhaseTimer
from tests import paths, tiny
from tests.data.streaming import shards, text_shards

MACHINES = sorted(paths.MACHINES.glob("*.json"))
ALL = optimizations.every()
NEEDS_ALL_SAMPLES = {"decode_cache", "feature_cache", "gpu_resident_data"}
"""They keep all samples somewhere, which is what streamed data is not for."""
TOLERANCE = {Effect.EXACT: 0.0, Effect.ROUNDING: 2e-2}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))


def images(path: Path) -> Job:
    shards.write_shards(path / "s", shards=6)
    return shards.job(path, "s", streams=2)


def texts(path: Path) -> Job:
    text_shards.write_shards(path / "s", shards=6)
    return text_shards.job(path, "s", stream=", stream: {streams: 2, window: 2}")


TASKS = pytest.mark.parametrize("task", [images, texts], ids=["images", "texts"])


def resident(job: Job) -> Job:
    """The same job without the stream; only asked for choices, its data is not read."""
    return job.model_copy(update={"data": job.data.model_copy(update={"stream": None})})


@TASKS
@pytest.mark.parametrize("optimization", ALL, ids=[candidate.name for candidate in ALL])
def test_chosen_as_for_data_in_memory_or_off_with_the_reason(
    tmp_path: Path, task: Callable[[Path], Job], optimization: Optimization
) -> None:
    job = task(tmp_path)
    data = load(job)
    facts = inspect_workload(data, build(job, data).module)
    for path in MACHINES:
        machine = hardware.read_hardware(path)
        for workload in (None, facts):
            choice = optimization.choose(job, machine, workload)
            assert choice.reason
            assert optimization.refuse(job, machine, workload, choice.value) is None
            if optimization.name not in NEEDS_ALL_SAMPLES:
                resident_value = optimization.choose(resident(job), machine, workload).value
                # What is on the GPU as a whole has nothing to load and to copy.
                free = optimization.name in ("loader_workers", "pinned_transfer")
                assert choice.value == resident_value or free, (path.stem, workload is None)
                continue
            assert choice.value == optimization.off
            refusal = optimization.refuse(job, machine, workload, True) or ""
            applies = optimization.refuse(resident(job), machine, workload, True) is None
            assert "are streamed" in refusal or not applies, (path.stem, refusal)


@TASKS
def test_workers_prepare_batches_where_the_samples_are_not_on_the_gpu(
    tmp_path: Path, task: Callable[[Path], Job]
) -> None:
    """Data in memory goes to the GPU and needs none; streamed data has what else is read from files has."""
    job = task(tmp_path)
    for path in MACHINES:
        machine = hardware.read_hardware(path)
        workers = plan.resolve(job, machine, None).row("loader_workers").value
        assert (workers == 0) is (machine.gpu is None or machine.cpu.budget < 2), path.stem


@TASKS
@pytest.mark.parametrize("name", sorted(NEEDS_ALL_SAMPLES))
def test_the_plan_names_the_stream(tmp_path: Path, task: Callable[[Path], Job], name: str) -> None:
    job = task(tmp_path)
    if name == "decode_cache" and task is texts:
        pytest.skip("texts are not decoded")
    frozen_model = job.model.model_copy(update={"freeze": Freeze(layers=1)})
    frozen_job = job.model_copy(update={"model": frozen_model})
    row = plan.resolve(frozen_job, hardware.read_hardware(paths.MACHINES / "h100.json"), None).row(name)
    assert row.value is False
    assert "are streamed" in row.reason, row.reason


def assemble_run(folder: Path, job: Job, settings: dict[str, Value]) -> run.Run:
    """A run with everything off but these values."""
    machine, data = tiny.machine(), load(job)
    network = build(job, data)
    plain_plan = plan.resolve(job, machine, inspect_workload(data, network.module), plain=True)
    decisions = [
        plan.Decision(decision.name, settings[decision.name], "job", "for the test", decision.effect)
        if decision.name in settings
        else decision
        for decision in plain_plan.decisions
    ]
    job_plan = plan.Plan(tuple(decisions), plain_plan.image, plain_plan.image_reason, plain_plan.profile)
    return run.assemble(job, machine, job_plan, folder, data, network, tiny.QuietSignals(), PhaseTimer())


@TASKS
def test_what_is_on_trains_to_the_same_losses(tmp_path: Path, task: Callable[[Path], Job]) -> None:
    job, machine = task(tmp_path), tiny.machine()
    data = load(job)
    facts = inspect_workload(data, build(job, data).module)
    plain_losses, tried_names = tiny.losses(assemble_run(tmp_path / "plain", job, {}), 4), []
    for optimization in ALL:
        if optimization.stage is Stage.PROCESS or optimization.name == "compile":  # of the process; takes minutes
            continue
        extra: list[Value] = {"loader_workers": [2], "micro_batch": [4]}.get(optimization.name, [])  # type: ignore[assignment]
        for value in [*optimization.candidates(job, machine, facts), *extra]:
            if value == optimization.off or optimization.refuse(job, machine, facts, value) is not None:
                continue
            tried_run = assemble_run(tmp_path / f"{optimization.name}-{value}", job, {optimization.name: value})
            assert optimization.effective(tried_run) == value
            tried_names.append(optimization.name)
            effect = optimization.effect(facts)
            if effect is not Effect.TRAINING:
                tolerance = TOLERANCE[effect]
                assert tiny.losses(tried_run, 4) == pytest.approx(plain_losses, rel=tolerance, abs=tolerance), (
                    optimization.name
                )
    assert "loader_workers" in tried_names
    assert ("unpadding" in tried_names) is (task is texts)
