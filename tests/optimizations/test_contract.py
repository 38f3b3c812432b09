"""The contract of every optimization; adding one to the folder adds it here."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from drivetrain import optimizations
from drivetrain.hardware import facts as hardware
from drivetrain.job.workload import Workload
from drivetrain.models.inspection import inspect_workload
from drivetrain.optimizations import Effect, Optimization, Stage
from tests import paths, tiny

MACHINES = sorted(paths.MACHINES.glob("*.json"))
ALL = optimizations.every()
# How far the loss of a few steps may be off, by declared effect; rounding includes bf16's eight bits.
TOLERANCE = {Effect.EXACT: 0.0, Effect.ROUNDING: 2e-2}


@pytest.fixture(params=ALL, ids=[o.name for o in ALL])
def optimization(request: pytest.FixtureRequest) -> Optimization:
    return request.param


def test_has_its_sentence(optimization: Optimization) -> None:
    assert optimization.sentence.endswith(".")
    assert len(optimization.sentence) > 30


def test_its_functions_are_typed_as_the_interface_says(optimization: Optimization) -> None:
    """What mypy cannot know of modules that are found in a folder."""
    signatures = [str(inspect.signature(function)) for function in (optimization.apply, optimization.effective)]
    shapes = [re.sub(r"'(NetworkRun|AssembledRun)'", "RUN", signature) for signature in signatures]
    assert shapes == ["(run: RUN, value: 'Value') -> 'None'", "(run: RUN) -> 'Value'"]


def test_off_is_a_value(optimization: Optimization) -> None:
    TypeAdapter(optimization.values).validate_python(optimization.off, strict=True)
    with pytest.raises(ValidationError):
        TypeAdapter(optimization.values).validate_python("nonsense", strict=True)


@pytest.fixture(scope="module")
def facts() -> Workload:
    data = tiny.dataset()
    return inspect_workload(data, tiny.build(tiny.job(), data).module)


@pytest.mark.parametrize("path", MACHINES, ids=[p.stem for p in MACHINES])
def test_every_choice_is_possible_on_every_machine(path: Path, facts: Workload) -> None:
    machine, job = hardware.read_hardware(path), tiny.job()
    for optimization, workload in itertools.product(ALL, (None, facts)):
        choice = optimization.choose(job, machine, workload)
        assert choice.reason
        TypeAdapter(optimization.values).validate_python(choice.value, strict=True)
        candidates = optimization.candidates(job, machine, workload)
        assert candidates
        for value in (choice.value, optimization.off, *candidates):
            assert optimization.refuse(job, machine, workload, value) is None, optimization.name


def list_switchable_values(optimization: Optimization, facts: Workload) -> list[object]:
    """Every value this machine can have, beside off; the process-wide thread count stays as it is."""
    values = [v for v in optimization.candidates(tiny.job(), tiny.machine(), facts) if v != optimization.off]
    extra = {"loader_workers": [1], "micro_batch": [4]}.get(optimization.name, [])
    return [] if optimization.stage is Stage.PROCESS else [*values, *extra]


def test_on_trains_to_the_same_loss_within_its_effect(
    optimization: Optimization, facts: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Inductor, but without decompositions and the C++ compiler, which take most of a minute; the slow tests have both.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    values = list_switchable_values(optimization, facts)
    if not values:
        pytest.skip("nothing to switch on in this process, or on this machine")
    job = tiny.job(train="optimizer: {lr: 1e-3}")
    plain_losses = tiny.losses(tiny.assemble_run(tmp_path, job), 4)
    for value in values:
        run = tiny.assemble_run(tmp_path, job, settings={optimization.name: value})  # type: ignore[dict-item]
        assert optimization.effective(run) == value
        effect = optimization.effect(inspect_workload(run.dataset, run.model))
        if effect is Effect.TRAINING:
            continue
        tolerance = TOLERANCE[effect]
        assert tiny.losses(run, 4) == pytest.approx(plain_losses, rel=tolerance, abs=tolerance), f"{value}"


def test_off_changes_nothing(optimization: Optimization, tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(), settings={optimization.name: optimization.off})
    weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    other_run = tiny.assemble_run(tmp_path, tiny.job())
    assert all(torch.equal(weights[name], value) for name, value in other_run.model.state_dict().items())
    assert tiny.losses(run, 3) == tiny.losses(other_run, 3)
