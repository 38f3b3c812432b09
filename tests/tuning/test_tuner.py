"""Measuring: decides right on known delays, vetoes wrong numbers, leaves the run alone, is remembered."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import optimizations
from drivetrain.data.load_data import load
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import step_graph
from drivetrain.plan import evidence, plan
from drivetrain.system import timeout
from drivetrain.training import run
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import assembly, numerics_check, paired_timing, tuner_state, variants
from drivetrain.tuning import tuner as tune
from tests import reports, tiny
from tests.messages import get_message, says_each
from tests.paths import IMPORTS, ROOT
from tests.training.replayed_steps import Replayer
from tests.tuning.tuned_machine import machine


def make_tuner(folder: Path, values: dict[str, optimizations.Value]) -> tuple[tune.Tuner, plan.Plan]:
    """A tuner of a tiny run, and the plan of that run: the rules' one, with these values."""
    hardware, dataset, job = machine(folder), tiny.dataset(), tiny.job()
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    job_plan = plan.resolve(job, hardware, facts).with_values(values)
    signals = tiny.QuietSignals()
    search = Assembly(job, hardware, job_plan, folder, dataset, network, signals, facts, lambda line: None)
    return tune.Tuner(search), job_plan


def side(seconds: float, noise: Callable[[], float]) -> Callable[[int], float]:
    """A side of a comparison that takes `seconds` a step, times a noise."""
    return lambda count: count * seconds * noise()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("incumbent", "challenger"), [(0.1, 0.08), (0.1, 0.13)])
def test_known_delays_despite_noise(seed: int, incumbent: float, challenger: float) -> None:
    """The neighbour slows whole blocks down by up to half; pairs and their median see through it."""
    draws = random.Random(seed)
    noise = [1 + 0.5 * (draws.random() < 0.3) + 0.05 * draws.random() for _ in range(100)]
    stream = itertools.cycle(noise)
    pair = paired_timing.compare(
        side(incumbent, lambda: next(stream)), side(challenger, lambda: next(stream)), 0.1, 1e9
    )
    assert variants.judge(pair, 0.0, 1e9).wins == (challenger < incumbent)


def test_the_pairs_with_the_least_noise_count_whatever_their_ratio() -> None:
    pairs = [(1.0, 1.0), (1.5, 1.0), (1.0, 1.4), (1.01, 1.0), (1.0, 1.02), (1.6, 1.6), (1.2, 1.0), (1.0, 1.01)]
    assert sorted(paired_timing.select_calmest(pairs)) == sorted([1.0, 1.01, 1.0 / 1.02, 1.0 / 1.01])


def test_clear_verdicts_are_taken_early() -> None:
    pair = paired_timing.compare(side(0.1, lambda: 1.0), side(0.2, lambda: 1.0), 0.1, 1e9)
    assert len(pair.ratios) == 4
    assert pair.format_spread() == "0.50x [0.50-0.50]"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([(1.0, 2.0), (0.9, 1.9)], None),
        ([(1.0004, 2.0), (0.9, 1.9)], None),
        ([(1.0, 2.0), (0.95, 1.9)], "loss 0.95 at step 2, 0.9 with everything off"),
        ([(1.0, 3.0), (0.9, 1.9)], "gradient norm 3 at step 1, 2 with everything off"),
        ([(float("nan"), 2.0), (0.9, 1.9)], "loss nan at step 1"),
    ],
)
def test_numbers_count_before_speed(numbers: list[tuple[float, float]], expected: str | None) -> None:
    difference = variants.find_difference(numbers, [(1.0, 2.0), (0.9, 1.9)], 1e-3)
    assert difference is None if expected is None else expected in (difference or "")


def measure_job(folder: Path, optimize: str, messages: list[str], epochs: int = 3) -> dict[str, evidence.Measurement]:
    hardware, dataset, job = machine(folder), tiny.dataset(), tiny.job(optimize=optimize, epochs=epochs)
    network = build(job, dataset)
    weights_before = {name: value.clone() for name, value in network.module.state_dict().items()}
    facts = inspection.inspect_workload(dataset, network.module)
    job_plan = plan.resolve(job, hardware, facts)
    search = Assembly(job, hardware, job_plan, folder, dataset, network, tiny.QuietSignals(), facts, messages.append)
    measurements = tune.load_or_measure(search)
    assert all(torch.equal(weights_before[name], value) for name, value in network.module.state_dict().items())
    return measurements


def test_short_runs_are_not_measured(tmp_path: Path) -> None:
    messages: list[str] = []
    assert measure_job(tmp_path, "compile: false, precision: fp32", messages) == {}
    assert "to measure optimizations" in messages[-1]


@pytest.mark.parametrize(("shortest", "measures"), [(0.0, True), (1e9, False)])
def test_runs_of_a_minute_measure_what_takes_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortest: float, measures: bool
) -> None:
    """A small network on a GPU waits for the host, and its short run never learned that a captured step does not."""
    captured = list[run.Run]()
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(tuner_state, "MIN_RUN_SECONDS", 1e9)
    monkeypatch.setattr(tuner_state, "MIN_QUICK_RUN_SECONDS", shortest)
    monkeypatch.setattr(tuner_state, "QUICK_SECONDS", 60.0)
    monkeypatch.setattr(step_graph, "candidates", lambda *_: [False, True])
    monkeypatch.setattr(run.Run, "capture_steps", lambda trial: captured.append(trial))
    optimizations.every.cache_clear()
    messages: list[str] = []
    results = measure_job(tmp_path, "compile: false, precision: fp32, fused_optimizer: true", messages, epochs=200)
    assert ("step_graph" in results, bool(captured)) == (measures, measures)
    assert any("skipped" in line for line in messages)
    measured_names = {line.split()[1] for line in messages} & {one.name for one in optimizations.every()}
    optimizations.every.cache_clear()
    assert measured_names == ({"step_graph"} if measures else set())


def test_off_measures_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    assert measure_job(tmp_path, "measure: off", messages) == {}
    assert messages == []


def test_measure_full_measures_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    messages: list[str] = []
    measurements = measure_job(tmp_path, "measure: full, compile: false, precision: fp32", messages)
    assert set(measurements) == {"channels_last"}
    assert "x [" in measurements["channels_last"].text
    assert measurements["channels_last"].text.endswith("loss ok")
    messages.clear()
    assert measure_job(tmp_path, "measure: full, compile: false, precision: fp32", messages) == measurements
    assert says_each(messages, [get_message("tune-measured-before", measurements["channels_last"].date)])


def test_wrong_numbers_are_vetoed_however_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    original_build = tune.Tuner.build

    def build_wrong(self: tune.Tuner, variant_plan: plan.Plan) -> variants.Variant:
        arm = original_build(self, variant_plan)
        if variant_plan.value("channels_last") != self.run.plan.value("channels_last"):
            step = arm.run.step
            arm.run.step.forward.compute = lambda *inputs: step.forward.network(*inputs) * 1.01
        return arm

    monkeypatch.setattr(tune.Tuner, "build", build_wrong)
    monkeypatch.setattr(
        variants, "turn_everything_off", lambda variant_plan, quiet: variant_plan.with_values({"channels_last": True})
    )
    messages: list[str] = []
    measurements = measure_job(tmp_path, "measure: full, compile: false, precision: fp32", messages)
    assert "vetoed: " in measurements["channels_last"].text
    assert measurements["channels_last"].value is True


def test_a_compiled_variant_is_compared_with_torchs_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled network does not draw packed bits; with others its loss would be off, and every compile vetoed."""
    reference_plans: list[Any] = []
    monkeypatch.setattr(
        tune.Tuner, "build", lambda self, variant_plan: reference_plans.append(variant_plan) or _Silent()
    )
    tuner, first_plan = make_tuner(tmp_path, {"packed_dropout": True})
    for compiled in (False, True, True, False):
        tuner.load_reference(False, first_plan.with_values({"compile": compiled}))
    assert [reference_plan.value("packed_dropout") for reference_plan in reference_plans] == [True, False]


def test_a_short_check_after_a_long_one_compares_the_first_steps(tmp_path: Path) -> None:
    """A stored result that no longer held left a reference of four steps, and the check of a short run ended with an error."""
    tuner, first_plan = make_tuner(tmp_path, {})
    four_steps = tuner.load_reference(False, first_plan)
    for steps in (2, 4, 6):
        tuner.compared_steps = steps
        reference = tuner.load_reference(False, first_plan)
        assert len(reference) == steps
        assert reference[:4] == four_steps[:steps]
        assert numerics_check.find_reference_difference(tuner, first_plan) is None


def test_replays_are_among_the_compared_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step with wrong numbers was not noticed, because all compared steps were computed as usual."""
    device = Replayer()
    monkeypatch.setattr(run, "CudaGraphs", lambda _: device)
    tuner, usual_plan = make_tuner(tmp_path, {"fused_optimizer": True})
    captured_plan = usual_plan.with_values({"step_graph": True})
    for steps in (2, 4):
        tuner.compared_steps, device.replays = steps, 0
        variant = tuner.build(captured_plan)
        variant.run.step.updater.prefers_device = True
        numbers = variant.read_numbers(True)
        assert device.replays == steps - 1
        assert len(tuner.load_reference(True, captured_plan)) == len(numbers)
        assert len(tuner.load_reference(True, usual_plan)) == steps
        capture: Any = variant.run.step.capture
        assert not capture.captured_steps  # they have no dropout


def test_what_was_measured_decides_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, first_plan = make_tuner(tmp_path, {})
    result = {"fused_optimizer": evidence.Measurement(False, "slower", "2026-11-29")}
    measured: dict[str, evidence.Measurement] = {}
    monkeypatch.setattr(tune, "load_or_measure", lambda search, *, can_restart: measured)

    def decide(measurements: Mapping[str, evidence.Measurement]) -> plan.Plan:
        return first_plan.with_values({name: measurement.value for name, measurement in measurements.items()})

    assert assembly.measure_plan(tuner.assembly, decide).plan is first_plan
    measured |= result
    assert assembly.measure_plan(tuner.assembly, decide).plan.value("fused_optimizer") is False


def test_texts_in_parts_are_set_beside_packed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draws its own dropout, so a comparison with the other's losses would veto one of them."""
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    reports.write_reports(tmp_path)
    job = reports.job(tmp_path, model=f"{reports.ENCODER[:-1]}, dropout: 0.3}}")
    hardware, dataset = machine(tmp_path), load(job)
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    first_plan = plan.resolve(job, hardware, facts)
    assert first_plan.value("unpadding") == "packed"
    signals = tiny.QuietSignals()
    tuner = tune.Tuner(
        Assembly(job, hardware, first_plan, tmp_path, dataset, network, signals, facts, lambda line: None)
    )
    for value in (512, "off"):
        row = next(o for o in optimizations.every() if o.name == "unpadding")
        verdict = tuner._compare(row, tuner.build(first_plan), first_plan.with_values({"unpadding": value}), 0.01, 5.0)
        assert "loss ok" in verdict.text
    plan_of_parts = first_plan.with_values({"unpadding": 512})
    row = next(o for o in optimizations.every() if o.name == "fused_optimizer")
    verdict = tuner._compare(
        row, tuner.build(plan_of_parts), plan_of_parts.with_values({"fused_optimizer": False}), 0.01, 5.0
    )
    assert "loss ok" in verdict.text


SLOW = """
import sys
from pathlib import Path
from drivetrain.tuning import assembly, tuner
from drivetrain.system import timeout
from drivetrain.plan import plan
from drivetrain.job_spec import load_job as spec
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.errors import Replanned
from drivetrain.system.files import write_json
from tests import tiny
from tests.tuning.tuned_machine import machine
tuner.FULL, tuner.QUICKEST = 9.0, 2.0
folder = Path(sys.argv[1])
path = folder / "job.yaml"
path.write_text(tiny.TEXT.format(model="", train="", epochs=3).replace("train: x", f"train: {sys.argv[2]}") +
                "optimize: {measure: full, cpu_threads: 1, openmp_runtime: 'off', allocator: 'off'}")
job = spec.load(path)
hardware = machine(folder)
write_json(folder / "hardware.json", hardware.to_json())
write_json(folder / "plan.json", plan.resolve(job, hardware).to_json())
try:
    assembly.assemble_run(folder, job, tiny.QuietSignals(), PhaseTimer())
except Replanned:
    print("another process", timeout.has_timed_out(), plan.load(folder / "plan.json").value("compile"))
"""


@pytest.mark.nightly
def test_a_compiler_timeout_moves_training_to_a_new_process(tmp_path: Path) -> None:
    """The training does not use the settings that it leaves in torch."""
    if machine(tmp_path).compiler is None:
        pytest.skip("no C++ compiler is installed")
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nsleep 60\n")
    compiler.chmod(0o755)
    paths = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": IMPORTS}
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path), str(ROOT / "jobs" / "data" / "digits.npz")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **paths},
        cwd=tmp_path,
    )
    assert "another process True False" in done.stdout, (done.stdout, done.stderr)
    assert re.search(r"tune: compile true not done within \d+ s", done.stdout)


def test_a_timeout_leaves_no_alarm_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeout, "_broken", [])
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(timeout.TimedOut, match="not done within 0 s"), timeout.time_limit(0.05):
        time.sleep(5)
    with timeout.time_limit(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


class _Silent:
    def read_numbers(self, quiet: bool) -> list[tuple[float, float]]:
        return [(1.0, 1.0)] * variants.COMPARED_STEPS


def test_the_plan_takes_what_was_measured_after_the_job_and_before_our_choice() -> None:
    hardware = tiny.machine()
    measurements = {"channels_last": evidence.Measurement(False, "false 1.21x [1.18-1.25], loss ok", "2026-11-21")}
    rows = {d.name: d for d in plan.resolve(tiny.job(), hardware, measured=measurements).decisions}
    assert (rows["channels_last"].value, rows["channels_last"].source) == (False, "measured")
    assert rows["channels_last"].evidence == "false 1.21x [1.18-1.25], loss ok"
    rows_of_job = {
        d.name: d
        for d in plan.resolve(tiny.job(optimize="channels_last: true"), hardware, measured=measurements).decisions
    }
    assert (rows_of_job["channels_last"].value, rows_of_job["channels_last"].source) == (True, "job")
