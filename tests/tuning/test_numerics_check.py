"""Numbers before speed: of what we would do anyway, and of what was measured with other data or settings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drivetrain.data.dataset import Dataset
from drivetrain.job import Job
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.plan import evidence, plan
from drivetrain.training import run
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import numerics_check, paired_timing, variants
from drivetrain.tuning import tuner as tune
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.tuner_state import TunerState
from tests import tiny
from tests.messages import begins_with, ends_with, get_message, says, says_each, says_only
from tests.tuning.tuned_machine import machine
from tests.tuning.wrong_results import wrong_where

MEASURED = "measure: full, compile: false, precision: fp32"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.001)
    monkeypatch.setattr(tune, "MIN_FULL_SECONDS", 3.0)


def measured(folder: Path, asked: Job, data: Dataset | None = None) -> tuple[dict[str, evidence.Measurement], str]:
    """The verdicts, and all that was said."""
    here, data, said = machine(folder), data or tiny.dataset(), list[str]()
    network = build(asked, data)
    facts = inspection.inspect_workload(data, network.module)
    made = plan.resolve(asked, here, facts)
    search = MicroBatchSearch(asked, here, made, data, network, facts, folder, tiny.Quiet(), said.append)
    found = tune.load_or_measure(search)
    return found, "\n".join(said)


def larger(scale: float) -> Dataset:
    data = tiny.dataset()
    return replace(data, train=replace(data.train, inputs=data.train.inputs * scale))  # type: ignore[type-var]


def known(folder: Path, *, other: bool = False, text: str = "1.5x, loss ok") -> evidence.Measurement:
    """Evidence of another day for the job and its data: of our own choice, or of the `other` value."""
    asked, data = tiny.job(optimize=MEASURED), tiny.dataset()
    usual = plan.resolve(asked, machine(folder), inspection.inspect_workload(data, build(asked, data).module)).value(
        "channels_last"
    )
    row = evidence.Measurement(bool(usual) is not other, text, "2026-11-21")
    speeds = tune.make_speed_key(asked, machine(folder), data, build(asked, data), False)
    evidence.store(machine(folder), speeds, {"channels_last": row})
    return row


def test_the_same_job_is_neither_measured_nor_checked_again(tmp_path: Path) -> None:
    asked, row = tiny.job(optimize=MEASURED), known(tmp_path)
    assert ends_with(measured(tmp_path, asked)[1], "data-settings-loss-ok")
    assert says_each(measured(tmp_path, asked), ({"channels_last": row}, get_message("tune-measured-before-reusing")))


@pytest.mark.parametrize(
    "other",
    [
        (tiny.job("optimizer: {name: adamw, lr: 10}", optimize=MEASURED), tiny.dataset()),
        (tiny.job("clip_norm: 0.1", optimize=MEASURED), tiny.dataset()),
        (tiny.job("ema: 0.9", optimize=MEASURED), tiny.dataset()),
        (tiny.job("schedule: cosine", optimize=MEASURED), tiny.dataset()),
        (tiny.job("class_weights: balanced", optimize=MEASURED), tiny.dataset()),
        (tiny.job("seed: 5", optimize=MEASURED), tiny.dataset()),
        (tiny.job(optimize=MEASURED), larger(1000.0)),
    ],
    ids=["rate", "clip", "ema", "schedule", "weights", "seed", "data"],
)
def test_other_settings_and_other_data_share_speeds_and_check_numbers(
    tmp_path: Path, other: tuple[Job, Dataset]
) -> None:
    found = {"channels_last": known(tmp_path)}
    measured(tmp_path, tiny.job(optimize=MEASURED))
    again, said = measured(tmp_path, *other)
    assert again == found
    assert says_only(said, "tune-measured-before-data")
    assert "reusing the results" in measured(tmp_path, *other)[1]


@pytest.mark.parametrize(
    "other",
    [
        (tiny.job("optimizer: {name: adamw, lr: 10}", optimize=MEASURED), tiny.dataset()),
        (tiny.job(optimize=MEASURED), larger(1000.0)),
    ],
    ids=["rate", "data"],
)
def test_cached_evidence_is_rejected_if_its_numbers_are_wrong(
    tmp_path: Path, other: tuple[Job, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = known(tmp_path, other=True).value
    wrong_where(monkeypatch, lambda tuner, made: made.value("channels_last") == faster)
    monkeypatch.setattr(
        variants, "turn_everything_off", lambda made, quiet: made.with_values({"channels_last": not faster})
    )
    found, said = measured(tmp_path, *other)
    assert says(said, "measured-before-data-settings")
    assert "channels_last" not in found or found["channels_last"].value is not faster


def test_a_veto_holds_only_for_the_settings_it_was_measured_with(tmp_path: Path) -> None:
    known(tmp_path, text="false vetoed: loss 3 at step 1, 1 with everything off")
    found, said = measured(tmp_path, tiny.job(optimize=MEASURED))
    assert says(said, "rejected-value-channels-last")
    assert not [row for row in found.values() if row.vetoed]


def contest(folder: Path, asked: Job, said: list[str]) -> TunerState:
    """A contest before anything is measured, its own choices vetted."""
    here, data = machine(folder), tiny.dataset()
    network = build(asked, data)
    first = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    made = run.assemble(asked, here, first, folder, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, said.append)
    found = TunerState(first, tuner.build(first))
    numerics_check.veto_wrong_defaults(tuner, found, math.inf)
    return found


def test_defaults_are_vetoed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that computes something else is taken back, and what goes on without it is measured as ever."""
    wrong_where(monkeypatch, lambda tuner, made: made.value("fused_optimizer") is True)
    said = list[str]()
    found = contest(tmp_path, tiny.job(optimize=MEASURED), said)
    assert found.plan.value("fused_optimizer") is found.incumbent.run.plan.value("fused_optimizer") is False
    assert list(found.measurements) == ["fused_optimizer"]
    assert found.measurements["fused_optimizer"].text.startswith("true vetoed: ")
    assert not found.should_measure("fused_optimizer", True)
    assert [line.partition(" vetoed: ")[0] for line in said] == ["tune: fused_optimizer true"]


def test_correct_numbers_are_accepted(tmp_path: Path) -> None:
    said = list[str]()
    assert contest(tmp_path, tiny.job(optimize=MEASURED), said).measurements == {}
    assert said == []


def test_a_requested_value_with_wrong_numbers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_where(monkeypatch, lambda tuner, made: made.value("fused_optimizer") is True)
    said = list[str]()
    assert contest(tmp_path, tiny.job(optimize="compile: false, fused_optimizer: true"), said).measurements == {}
    assert begins_with(said[0], "warning-settings-job-change")


def test_defaults_are_checked_in_every_run_that_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[TunerState]()
    monkeypatch.setattr(numerics_check, "veto_wrong_defaults", lambda tuner, contest, until: checked.append(contest))
    measured(tmp_path, tiny.job(optimize=MEASURED))
    assert len(checked) == 1


def test_a_high_initial_fp16_scale_is_no_veto(tmp_path: Path) -> None:
    asked = tiny.job("fp16: {initial_scale: 1.0e+12, max_scale: 1.0e+12}")
    made = tiny.assembled(tmp_path, asked, settings={"precision": "fp16"})
    made.train_mode()
    reference = tiny.assembled(tmp_path, asked)
    reference.train_mode()
    steps = [
        variants.Variant(one, iter(list(one.batches.epoch(0)) * 2)).read_numbers(False) for one in (made, reference)
    ]
    assert variants.find_difference(steps[0], steps[1], variants.SHORT_FORMAT_TOLERANCE) is None
    assert made.step.scaler.scale < 1e11


def test_values_that_change_the_training_stay_in_the_reference() -> None:
    """A job that asks for it gets it; else everything beside it would be vetoed."""
    made = plan.resolve(tiny.job(optimize="micro_batch: 8"), tiny.machine())
    rows = [replace(row, effect="training") if row.name == "micro_batch" else row for row in made.decisions]
    assert variants.turn_everything_off(replace(made, decisions=tuple(rows)), True).value("micro_batch") == 8
    assert variants.turn_everything_off(made, True).value("micro_batch") == "off"


def test_evidence_key_of_a_job(tmp_path: Path) -> None:
    asked, data = tiny.job(), tiny.dataset()
    network = build(asked, data)
    first = tune.make_numbers_key("x", asked, data, network)
    assert first == tune.make_numbers_key("x", asked, data, network)
    assert first != tune.make_numbers_key("y", asked, data, network)
    with torch.no_grad():
        next(network.module.parameters())[0] += 1
    assert first != tune.make_numbers_key("x", asked, data, network)
    assert tune.make_numbers_key("x", asked.model_copy(update={"task": "python"}), data, network) is None
