"""Numbers are checked before speed: of the default plan, and of results measured with other data or settings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.data.dataset import Dataset
from drivetrain.job import Job
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.plan import evidence, plan
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import numerics_check, paired_timing, variants
from drivetrain.tuning import tuner as tune
from drivetrain.tuning.tuner_state import TunerState
from tests import tiny
from tests.messages import begins_with, get_message, says, says_each, says_only
from tests.tuning.tuned_machine import machine
from tests.tuning.wrong_results import corrupt_where

MEASURED = "measure: full, compile: false, precision: fp32"


@pytest.fixture(autouse=True)
def shorten_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.001)
    monkeypatch.setattr(tune, "MIN_FULL_SECONDS", 3.0)


def measure_job(folder: Path, job: Job, dataset: Dataset | None = None) -> tuple[dict[str, evidence.Measurement], str]:
    """Return the verdicts and the messages."""
    hardware, dataset, messages = machine(folder), dataset or tiny.dataset(), list[str]()
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    job_plan = plan.resolve(job, hardware, facts)
    search = Assembly(job, hardware, job_plan, folder, dataset, network, tiny.QuietSignals(), facts, messages.append)
    measurements = tune.load_or_measure(search)
    return measurements, "\n".join(messages)


def larger(scale: float) -> Dataset:
    data = tiny.dataset()
    return replace(data, train=replace(data.train, inputs=data.train.inputs * scale))  # type: ignore[attr-defined, type-var]


def store_evidence(folder: Path, *, other: bool = False, text: str = "1.5x, loss ok") -> evidence.Measurement:
    """Evidence of another day for the job and its data: of our own choice, or of the `other` value."""
    job, dataset = tiny.job(optimize=MEASURED), tiny.dataset()
    chosen_value = plan.resolve(
        job, machine(folder), inspection.inspect_workload(dataset, build(job, dataset).module)
    ).value("channels_last")
    row = evidence.Measurement(bool(chosen_value) is not other, text, "2026-11-21")
    speed_key = tune.make_speed_key(job, machine(folder), dataset, build(job, dataset), False)
    evidence.store(machine(folder), speed_key, {"channels_last": row}, print)
    return row


def test_the_same_job_is_checked_and_not_measured_again(tmp_path: Path) -> None:
    job, row = tiny.job(optimize=MEASURED), store_evidence(tmp_path)
    for _ in range(2):
        assert says_each(measure_job(tmp_path, job), ({"channels_last": row}, get_message("tune-measured-before-data")))


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
    stored = {"channels_last": store_evidence(tmp_path)}
    reused, messages = measure_job(tmp_path, *other)
    assert reused == stored
    assert says_only(messages, "tune-measured-before-data")


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
    faster_value = store_evidence(tmp_path, other=True).value
    corrupt_where(monkeypatch, lambda tuner, variant_plan: variant_plan.value("channels_last") == faster_value)
    monkeypatch.setattr(
        variants,
        "turn_everything_off",
        lambda variant_plan, quiet: variant_plan.with_values({"channels_last": not faster_value}),
    )
    measurements, messages = measure_job(tmp_path, *other)
    assert says(messages, "measured-before-data-settings")
    assert "channels_last" not in measurements or measurements["channels_last"].value is not faster_value


def test_a_veto_holds_only_for_the_settings_it_was_measured_with(tmp_path: Path) -> None:
    store_evidence(tmp_path, text="false vetoed: loss 3 at step 1, 1 with everything off")
    measurements, messages = measure_job(tmp_path, tiny.job(optimize=MEASURED))
    assert says(messages, "rejected-value-channels-last")
    assert not [row for row in measurements.values() if row.vetoed]


def contest(folder: Path, job: Job, messages: list[str]) -> TunerState:
    """A contest before anything is measured, its own choices vetted."""
    hardware, dataset = machine(folder), tiny.dataset()
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    first_plan = plan.resolve(job, hardware, facts)
    search = Assembly(job, hardware, first_plan, folder, dataset, network, tiny.QuietSignals(), facts, messages.append)
    tuner = tune.Tuner(search)
    state = TunerState(first_plan, tuner.build(first_plan))
    numerics_check.veto_wrong_defaults(tuner, state, math.inf)
    return state


def test_defaults_are_vetoed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default with wrong numbers is turned off, and all other settings are measured as usual."""
    corrupt_where(monkeypatch, lambda tuner, variant_plan: variant_plan.value("fused_optimizer") is True)
    messages = list[str]()
    state = contest(tmp_path, tiny.job(optimize=MEASURED), messages)
    assert state.plan.value("fused_optimizer") is state.incumbent.run.plan.value("fused_optimizer") is False
    assert list(state.measurements) == ["fused_optimizer"]
    assert state.measurements["fused_optimizer"].text.startswith("true vetoed: ")
    assert not state.should_measure("fused_optimizer", True)
    assert [line.partition(" vetoed: ")[0] for line in messages] == ["tune: fused_optimizer true"]


def test_correct_numbers_are_accepted(tmp_path: Path) -> None:
    messages = list[str]()
    assert contest(tmp_path, tiny.job(optimize=MEASURED), messages).measurements == {}
    assert messages == []


def test_a_requested_value_with_wrong_numbers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt_where(monkeypatch, lambda tuner, variant_plan: variant_plan.value("fused_optimizer") is True)
    messages = list[str]()
    assert contest(tmp_path, tiny.job(optimize="compile: false, fused_optimizer: true"), messages).measurements == {}
    assert begins_with(messages[0], "warning-settings-job-change")


def test_defaults_are_checked_in_every_run_that_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[TunerState]()
    monkeypatch.setattr(numerics_check, "veto_wrong_defaults", lambda tuner, contest, until: checked.append(contest))
    measure_job(tmp_path, tiny.job(optimize=MEASURED))
    assert len(checked) == 1


def test_a_high_initial_fp16_scale_is_no_veto(tmp_path: Path) -> None:
    job = tiny.job("fp16: {initial_scale: 1.0e+12, max_scale: 1.0e+12}")
    fp16_run = tiny.assemble_run(tmp_path, job, settings={"precision": "fp16"})
    fp16_run.train_mode()
    reference_run = tiny.assemble_run(tmp_path, job)
    reference_run.train_mode()
    step_numbers = [
        variants.Variant(training_run, iter(list(training_run.batches.epoch(0)) * 2)).read_numbers(False)
        for training_run in (fp16_run, reference_run)
    ]
    assert variants.find_difference(step_numbers[0], step_numbers[1], variants.SHORT_FORMAT_TOLERANCE) is None
    assert fp16_run.step.updater.scaler.scale < 1e11


def test_values_that_change_the_training_stay_in_the_reference() -> None:
    """A setting requested by the job stays on; otherwise all other settings would be vetoed."""
    split_plan = plan.resolve(tiny.job(optimize="micro_batch: 8"), tiny.machine())
    rows = [replace(row, effect="training") if row.name == "micro_batch" else row for row in split_plan.decisions]
    assert variants.turn_everything_off(replace(split_plan, decisions=tuple(rows)), True).value("micro_batch") == 8
    assert variants.turn_everything_off(split_plan, True).value("micro_batch") == "off"
