"""A run too short to be measured: what the calibration chose is checked first, and trains as the plain run does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drivetrain.job import Job
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import precision
from drivetrain.plan import evidence, plan
from drivetrain.training import run
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import numerics_check, variants
from drivetrain.tuning import tuner as tune
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.paired_timing import PairedTiming
from tests import calibrations, tiny
from tests.tuning.tuned_machine import machine
from tests.tuning.wrong_results import corrupt_where


@pytest.fixture(autouse=True)
def allow_long_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics_check, "MAX_CHECK_SECONDS", 600.0)
    set_speed(monkeypatch, 1.3)


def set_speed(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Let every calibrated value have this speed in steps of the job, against without it."""
    monkeypatch.setattr(numerics_check, "compare", lambda *_: PairedTiming((ratio,)))


def assemble_tuned_run(
    folder: Path, job: Job, ratio: float | None
) -> tuple[run.Run, dict[str, evidence.Measurement], list[str]]:
    """The run of a machine on which every probe has this ratio, what was turned off before it, and what was said."""
    hardware, dataset, messages = machine(folder), tiny.dataset(), list[str]()
    hardware = hardware if ratio is None else calibrations.add_calibration(hardware, calibrations.make_probes(ratio))
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    job_plan = plan.resolve(job, hardware, facts)
    search = MicroBatchSearch(
        job, hardware, job_plan, dataset, network, facts, folder, tiny.QuietSignals(), messages.append
    )
    measurements = tune.load_or_measure(search)
    return (
        run.assemble(job, hardware, job_plan, folder, dataset, network, tiny.QuietSignals(), PhaseTimer()),
        measurements,
        messages,
    )


def test_calibrated_choices_end_where_the_plain_run_ends(tmp_path: Path) -> None:
    job = tiny.job(train="optimizer: {lr: 1e-3}", optimize="compile: false")
    tuned_run, measurements, messages = assemble_tuned_run(tmp_path, job, 1.6)
    assert tuned_run.plan.row("channels_last").source == "calibrated"
    if "bf16" in precision.formats(tuned_run.hardware):
        assert (tuned_run.plan.value("precision"), tuned_run.step.dtype is not None) == ("bf16", True)
    assert measurements == {}
    assert re.fullmatch(
        r"calibrate: \w+ \w+ 1\.30x .+ against \w+ in steps of this job, loss ok in 2 steps", messages[-1]
    )
    plain_losses = tiny.losses(tiny.assemble_run(tmp_path, job), 12)
    assert tiny.losses(tuned_run, 12) == pytest.approx(plain_losses, rel=variants.SHORT_FORMAT_TOLERANCE)
    assert plain_losses[-1] < plain_losses[0]


def test_a_calibrated_value_that_is_slower_in_the_jobs_own_steps_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 was taken for a network that is 1.2 times slower with it."""
    set_speed(monkeypatch, 0.8)
    tuned_run, measurements, messages = assemble_tuned_run(tmp_path, tiny.job(optimize="compile: false"), 1.6)
    assert tuned_run.plan.row("channels_last").source == "calibrated"
    assert measurements["channels_last"].value is False
    assert any(line.startswith("calibrate: channels_last true 0.80x") for line in messages)


def test_a_calibrated_value_with_wrong_numbers_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny.job(optimize="compile: false, precision: fp32")
    corrupt_where(monkeypatch, lambda self, variant_plan: variant_plan.value("channels_last"))
    _, measurements, messages = assemble_tuned_run(tmp_path, job, 1.6)
    assert measurements["channels_last"].value is False
    assert measurements["channels_last"].vetoed
    assert any("channels_last true vetoed: " in line for line in messages), messages


@pytest.mark.parametrize(("epochs", "checked"), [(3, False), (60, True)])
def test_defaults_are_checked_where_two_steps_hardly_delay_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int, checked: bool
) -> None:
    job = tiny.job(optimize="compile: false, precision: fp32", epochs=epochs)
    corrupt_where(monkeypatch, lambda self, variant_plan: variant_plan.value("channels_last"))
    # A real step takes milliseconds, and a busy machine more than the share of the run that the check may take.
    monkeypatch.setattr(variants.Variant, "time_steps", lambda self, count: 60.0 * count)
    _, measurements, messages = assemble_tuned_run(tmp_path, job, None)
    assert ("channels_last" in measurements) is checked, messages


def test_off_checks_nothing_and_uses_no_calibration(tmp_path: Path) -> None:
    tuned_run, measurements, messages = assemble_tuned_run(tmp_path, tiny.job(optimize="measure: off"), 1.6)
    assert all(row.source != "calibrated" for row in tuned_run.plan.decisions)
    assert (measurements, messages) == ({}, [])
