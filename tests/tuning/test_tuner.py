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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import optimizations
from drivetrain.data.load_data import load
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import cuda_graphs, step_graph
from drivetrain.plan import evidence, plan
from drivetrain.system import timeout
from drivetrain.training import run
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import numerics_check, paired_timing, tuner_state, variants
from drivetrain.tuning import tuner as tune
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from tests import reports, tiny
from tests.messages import get_message, says_each
from tests.paths import IMPORTS, ROOT
from tests.training.replayed import Again
from tests.tuning.tuned_machine import machine


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
    taken = [(1.0, 1.0), (1.5, 1.0), (1.0, 1.4), (1.01, 1.0), (1.0, 1.02), (1.6, 1.6), (1.2, 1.0), (1.0, 1.01)]
    assert sorted(paired_timing.select_calmest(taken)) == sorted([1.0, 1.01, 1.0 / 1.02, 1.0 / 1.01])


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
    found = variants.find_difference(numbers, [(1.0, 2.0), (0.9, 1.9)], 1e-3)
    assert found is None if expected is None else expected in (found or "")


def measured(folder: Path, optimize: str, said: list[str], epochs: int = 3) -> dict[str, evidence.Measurement]:
    here, data, asked = machine(folder), tiny.dataset(), tiny.job(optimize=optimize, epochs=epochs)
    network = build(asked, data)
    before = {name: value.clone() for name, value in network.module.state_dict().items()}
    facts = inspection.inspect_workload(data, network.module)
    made = plan.resolve(asked, here, facts)
    search = MicroBatchSearch(asked, here, made, data, network, facts, folder, tiny.Quiet(), said.append)
    found = tune.load_or_measure(search)
    assert all(torch.equal(before[name], value) for name, value in network.module.state_dict().items())
    return found


def test_short_runs_are_not_measured(tmp_path: Path) -> None:
    said: list[str] = []
    assert measured(tmp_path, "compile: false", said) == {}
    assert "to measure optimizations" in said[-1]


@pytest.mark.parametrize(("shortest", "measures"), [(0.0, True), (1e9, False)])
def test_runs_of_a_minute_measure_what_takes_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortest: float, measures: bool
) -> None:
    """A small network on a GPU waits for the host, and its short run never learned that a recorded step does not."""
    recorded = list[run.Run]()
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(tuner_state, "MIN_RUN_SECONDS", 1e9)
    monkeypatch.setattr(tuner_state, "MIN_QUICK_RUN_SECONDS", shortest)
    monkeypatch.setattr(tuner_state, "QUICK_SECONDS", 60.0)
    monkeypatch.setattr(step_graph, "candidates", lambda *_: [False, True])
    monkeypatch.setattr(run.Run, "record_step", lambda trial: recorded.append(trial))
    optimizations.every.cache_clear()
    said: list[str] = []
    results = measured(tmp_path, "compile: false, precision: fp32, fused_optimizer: true", said, epochs=200)
    assert ("step_graph" in results, bool(recorded)) == (measures, measures)
    assert any("skipped" in line for line in said)
    measured_names = {line.split()[1] for line in said} & {one.name for one in optimizations.every()}
    optimizations.every.cache_clear()
    assert measured_names == ({"step_graph"} if measures else set())


def test_off_measures_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    assert measured(tmp_path, "measure: off", said) == {}
    assert said == []


def test_measure_full_measures_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    said: list[str] = []
    found = measured(tmp_path, "measure: full, compile: false, precision: fp32", said)
    assert set(found) == {"channels_last"}
    assert "x [" in found["channels_last"].text
    assert found["channels_last"].text.endswith("loss ok")
    said.clear()
    assert measured(tmp_path, "measure: full, compile: false, precision: fp32", said) == found
    assert says_each(said, [get_message("tune-measured-before-reusing-results", found["channels_last"].date)])


def test_wrong_numbers_are_vetoed_however_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    real = tune.Tuner.build

    def wrong(self: tune.Tuner, made: plan.Plan) -> variants.Variant:
        arm = real(self, made)
        if made.value("channels_last") != self.run.plan.value("channels_last"):
            step = arm.run.step
            arm.run.configure_step(forward=lambda *inputs: step.model(*inputs) * 1.01)
        return arm

    monkeypatch.setattr(tune.Tuner, "build", wrong)
    monkeypatch.setattr(variants, "turn_everything_off", lambda made, quiet: made.with_values({"channels_last": True}))
    said: list[str] = []
    found = measured(tmp_path, "measure: full, compile: false, precision: fp32", said)
    assert "vetoed: " in found["channels_last"].text
    assert found["channels_last"].value is True


def test_a_compiled_variant_is_compared_with_torchs_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled network does not draw packed bits; with others its loss would be off, and every compile vetoed."""
    seen: list[Any] = []
    monkeypatch.setattr(tune.Tuner, "build", lambda self, made: seen.append(made) or _Silent())
    here, data, asked = machine(tmp_path), tiny.dataset(), tiny.job()
    network = build(asked, data)
    first = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    first = first.with_values({"packed_dropout": True})
    made = run.assemble(asked, here, first, tmp_path, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, lambda line: None)
    for compiled in (False, True, True, False):
        tuner.load_reference(False, first.with_values({"compile": compiled}))
    assert [one.value("packed_dropout") for one in seen] == [True, False]


def test_a_short_check_after_a_long_one_compares_the_first_steps(tmp_path: Path) -> None:
    """A stored result that no longer held left a reference of four steps, and the check of a short run ended with an error."""
    here, data, asked = machine(tmp_path), tiny.dataset(), tiny.job()
    network = build(asked, data)
    first = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    made = run.assemble(asked, here, first, tmp_path, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, lambda line: None)
    four = tuner.load_reference(False, first)
    for steps in (2, 4, 6):
        tuner.compared_steps = steps
        reference = tuner.load_reference(False, first)
        assert len(reference) == steps
        assert reference[:4] == four[:steps]
        assert numerics_check.find_reference_difference(tuner, first) is None


def test_replays_are_among_the_compared_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step with wrong numbers was not noticed: all that were compared had been computed as usual."""
    device = Again()
    monkeypatch.setattr(run, "CudaGraphs", lambda _: device)
    here, data, asked = machine(tmp_path), tiny.dataset(), tiny.job()
    network = build(asked, data)
    usual = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    usual = usual.with_values({"fused_optimizer": True})
    made = run.assemble(asked, here, usual, tmp_path, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, lambda line: None)
    recorded = usual.with_values({"step_graph": True})
    for steps in (2, 4):
        tuner.compared_steps, device.replays = steps, 0
        variant = tuner.build(recorded)
        variant.run.step.state.prefers_device = True
        numbers = variant.read_numbers(True)
        assert device.replays == steps - 1
        assert len(tuner.load_reference(True, recorded)) == len(numbers)
        assert len(tuner.load_reference(True, usual)) == steps
        captured: Any = variant.run.step.options.captured
        assert not captured.recordings  # they have no dropout


@pytest.mark.parametrize("compiled", [False, True])
def test_a_value_that_needs_another_is_measured_only_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """CUDA graphs are a mode of compile; without it the same kernels were compared with themselves."""
    monkeypatch.setattr(cuda_graphs, "candidates", lambda *given: [False, True])
    optimizations.every.cache_clear()
    here, data, asked = machine(tmp_path), tiny.dataset(), tiny.job()
    network = build(asked, data)
    first = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    made = run.assemble(asked, here, first, tmp_path, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, lambda line: None)
    names = {one.name for one, _ in tuner._list_candidates(first.with_values({"compile": compiled}))}
    optimizations.every.cache_clear()
    assert ("cuda_graphs" in names) == compiled


def test_texts_in_parts_are_set_beside_packed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draws dropout of its own: compared with the other's, one of them would be vetoed."""
    monkeypatch.setattr(paired_timing, "BLOCK_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    reports.write(tmp_path)
    asked = reports.job(tmp_path, model=f"{reports.ENCODER[:-1]}, dropout: 0.3}}")
    here, data = machine(tmp_path), load(asked)
    network = build(asked, data)
    first = plan.resolve(asked, here, inspection.inspect_workload(data, network.module))
    assert first.value("unpadding") == "packed"
    made = run.assemble(asked, here, first, tmp_path, data, network, tiny.Quiet(), PhaseTimer())
    tuner = tune.Tuner(made, data, network, lambda line: None)
    for value in (512, "off"):
        row = next(o for o in optimizations.every() if o.name == "unpadding")
        verdict = tuner._compare(row, tuner.build(first), first.with_values({"unpadding": value}), 0.01, 5.0)
        assert "loss ok" in verdict.text
    parts = first.with_values({"unpadding": 512})
    row = next(o for o in optimizations.every() if o.name == "fused_optimizer")
    verdict = tuner._compare(row, tuner.build(parts), parts.with_values({"fused_optimizer": False}), 0.01, 5.0)
    assert "loss ok" in verdict.text


SLOW = """
import sys
from pathlib import Path
from drivetrain.tuning import assembly, process_settings, tuner
from drivetrain.system import timeout
from drivetrain.plan import plan
from drivetrain.job_spec import load_job as spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.errors import Replanned
from drivetrain.system.files import write_json
from tests import tiny
from tests.training import replayed
from tests.tuning.tuned_machine import machine
tuner.FULL, tuner.QUICKEST = 9.0, 2.0
folder = Path(sys.argv[1])
path = folder / "job.yaml"
path.write_text(tiny.TEXT.format(model="", train="", epochs=3).replace("train: x", f"train: {sys.argv[2]}") +
                "optimize: {measure: full, cpu_threads: 1, openmp_runtime: 'off', allocator: 'off'}")
asked = spec.load(path)
here = machine(folder)
write_json(folder / "hardware.json", here.to_json())
write_json(folder / "plan.json", plan.resolve(asked, here).to_json())
try:
    assembly.assemble_run(folder, asked, tiny.Quiet(), PhaseTimer(), SpecSource(path))
except Replanned:
    print("another process", timeout.has_timed_out(), plan.load(folder / "plan.json").value("compile"))
"""


@pytest.mark.nightly
def test_a_compiler_timeout_moves_training_to_a_new_process(tmp_path: Path) -> None:
    """What it leaves behind in torch is not trained with."""
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
    here = tiny.machine()
    seen = {"channels_last": evidence.Measurement(False, "false 1.21x [1.18-1.25], loss ok", "2026-11-21")}
    rows = {d.name: d for d in plan.resolve(tiny.job(), here, measured=seen).decisions}
    assert (rows["channels_last"].value, rows["channels_last"].source) == (False, "measured")
    assert rows["channels_last"].evidence == "false 1.21x [1.18-1.25], loss ok"
    asked = {d.name: d for d in plan.resolve(tiny.job(optimize="channels_last: true"), here, measured=seen).decisions}
    assert (asked["channels_last"].value, asked["channels_last"].source) == (True, "job")
