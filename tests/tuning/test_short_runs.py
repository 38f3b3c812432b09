"""A run too short to be measured: a short number format that a rule chose is compared with fp32 first, and timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.plan import evidence, plan
from drivetrain.training import run
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import numerics_check, variants
from drivetrain.tuning import tuner as tune
from drivetrain.tuning.paired_timing import PairedTiming
from tests import tiny
from tests.messages import get_message, says
from tests.tuning.tuned_machine import machine
from tests.tuning.wrong_results import corrupt_where

LONG = 60
"""Epochs of a run in which a check fits."""


@pytest.fixture(autouse=True)
def allow_long_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    # A real step takes milliseconds, and a busy machine more than the share of the run that a check may take.
    monkeypatch.setattr(variants.Variant, "time_steps", lambda self, count: 60.0 * count)
    monkeypatch.setattr(numerics_check, "TIMED_SECONDS", 600.0)
    set_speed(monkeypatch, 1.3)


def set_speed(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Let the short format have this speed in steps of the job, against fp32."""
    monkeypatch.setattr(numerics_check, "compare", lambda *_: PairedTiming((ratio,)))


def assemble_tuned_run(
    folder: Path, settings: str = "", epochs: int = LONG, *, has_bf16: bool = True
) -> tuple[run.Run, dict[str, evidence.Measurement], list[str]]:
    """Check the run of a CPU with or without bf16 instructions; return it, the measurements and the messages."""
    job = tiny.job(train="optimizer: {lr: 1e-3}", optimize=f"compile: false{settings}", epochs=epochs)
    hardware, dataset, messages = machine(folder), tiny.dataset(), list[str]()
    flags = ("avx512_bf16",) if has_bf16 else ()
    hardware = replace(hardware, cpu=replace(hardware.cpu, architecture="x86_64", flags=flags))
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    job_plan = plan.resolve(job, hardware, facts)
    search = Assembly(job, hardware, job_plan, folder, dataset, network, tiny.QuietSignals(), facts, messages.append)
    measurements = tune.load_or_measure(search)
    tuned_plan = plan.resolve(job, hardware, facts, measured=measurements)
    return (
        Assembly(job, hardware, tuned_plan, folder, dataset, network, tiny.QuietSignals()).assemble(),
        measurements,
        messages,
    )


def test_bf16_that_is_right_and_faster_is_kept_and_ends_where_the_plain_run_ends(tmp_path: Path) -> None:
    tuned_run, _, messages = assemble_tuned_run(tmp_path)
    assert tuned_run.step.forward.dtype is not None
    row = tuned_run.plan.decision("precision")
    assert (row.value, row.source) == ("bf16", "measured")
    text = get_message("steps-this-job-loss", "bf16 1.30x [1.30-1.30]")
    assert row.evidence == text
    assert messages[-1] == f"tune: precision {text}"
    plain_losses = tiny.losses(tiny.assemble_run(tmp_path, tiny.job(train="optimizer: {lr: 1e-3}")), 12)
    assert tiny.losses(tuned_run, 12) == pytest.approx(plain_losses, rel=variants.SHORT_FORMAT_TOLERANCE)
    assert plain_losses[-1] < plain_losses[0]


@pytest.mark.parametrize("ratio", [0.8, 1.01])
def test_bf16_that_is_not_faster_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    set_speed(monkeypatch, ratio)
    tuned_run, _, messages = assemble_tuned_run(tmp_path)
    assert tuned_run.plan.value("precision") == "fp32"
    assert f"bf16 {ratio:.2f}x" in messages[-1]


def test_bf16_with_wrong_numbers_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "SHORT_FORMAT_TOLERANCE", 1e-4)
    corrupt_where(monkeypatch, lambda self, variant_plan: variant_plan.value("precision") == "bf16")
    tuned_run, measurements, messages = assemble_tuned_run(tmp_path)
    assert tuned_run.plan.value("precision") == "fp32"
    assert measurements["precision"].vetoed, messages


@pytest.mark.parametrize("epochs", [2, LONG])
def test_bf16_on_a_cpu_is_off_where_the_check_would_take_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    monkeypatch.setattr(numerics_check, "MAX_CHECK_SECONDS", 0.0)
    tuned_run, measurements, _ = assemble_tuned_run(tmp_path, epochs=epochs)
    assert tuned_run.plan.value("precision") == "fp32"
    text = measurements["precision"].text
    assert says(text, "bf16-not-compared") if epochs == LONG else says(text, "too-few-steps-compare")


def test_bf16_whose_steps_are_too_slow_to_be_timed_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its kernels bf16 is a hundred times slower; that must not delay a run until it is clear."""
    monkeypatch.setattr(
        variants.Variant, "time_steps", lambda self, count: count * (100.0 if self.run.step.forward.dtype else 1.0)
    )
    tuned_run, measurements, _ = assemble_tuned_run(tmp_path)
    assert tuned_run.plan.value("precision") == "fp32"
    assert says(measurements["precision"].text, "bf16-not-timed")


@pytest.mark.parametrize(("epochs", "checked"), [(3, False), (LONG, True)])
def test_defaults_are_checked_where_two_steps_hardly_delay_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int, checked: bool
) -> None:
    corrupt_where(monkeypatch, lambda self, variant_plan: variant_plan.value("channels_last"))
    _, measurements, messages = assemble_tuned_run(tmp_path, ", precision: fp32", epochs)
    assert ("channels_last" in measurements) is checked, messages


@pytest.mark.parametrize(("settings", "has_bf16"), [(', measure: "off"', True), ("", False)])
def test_nothing_is_compared_where_no_rule_chose_a_short_format(tmp_path: Path, settings: str, has_bf16: bool) -> None:
    tuned_run, measurements, messages = assemble_tuned_run(tmp_path, settings, epochs=3, has_bf16=has_bf16)
    assert tuned_run.plan.value("precision") == "fp32"
    assert measurements == {}, messages
