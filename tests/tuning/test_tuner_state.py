"""The tuner's decisions on arms of known speed: right under noise, in an order that finds what goes well together."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drivetrain.hardware import facts
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import Value
from drivetrain.plan import plan
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import numerics_check, paired_timing, tuner_state, variants
from drivetrain.tuning import tuner as tune
from tests import tiny
from tests.messages import says_only

Cost = Callable[[plan.Plan], float]
GOOD = [(1.0, 2.0), (0.9, 1.9), (0.8, 1.8), (0.7, 1.7)]
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
BIG = "precision: auto, compile: false, measure: full"


@dataclass
class KnownArm:
    """An arm whose steps take a known time."""

    run: Any
    cost: Callable[[], float]
    batches: Any = None

    def time_steps(self, count: int) -> float:
        return count * self.cost()

    def read_numbers(self, quiet: bool) -> list[tuple[float, float]]:
        return GOOD


def make_machine(flags: tuple[str, ...] = FLAGS) -> facts.Hardware:
    tiny_machine = tiny.machine()
    return replace(tiny_machine, cpu=replace(tiny_machine.cpu, flags=flags), compiler=None)


def make_tuner(
    folder: Path, machine: facts.Hardware, cost: Cost, noise: Iterator[float], messages: list[str]
) -> tune.Tuner:
    """A tuner whose arms take a time by their plan."""
    job, dataset = tiny.job(optimize=BIG), tiny.dataset()
    network = build(job, dataset)
    workload = inspection.inspect_workload(dataset, network.module)
    # The tuner itself measures what the check of short runs would have decided.
    job_plan = plan.resolve(job, machine, workload).with_values({"precision": "fp32"})
    signals = tiny.QuietSignals()

    class Tuned(tune.Tuner):
        def build(self, variant_plan: plan.Plan) -> Any:
            return KnownArm(SimpleNamespace(plan=variant_plan), lambda: cost(variant_plan) * next(noise))

        def batches(self, variant_run: Any) -> Any:
            return iter(())

    return Tuned(Assembly(job, machine, job_plan, folder, dataset, network, signals, workload, messages.append))


def list_values(measurements: dict[str, Any]) -> dict[str, Value]:
    return {name: row.value for name, row in measurements.items()}


def noisy(seed: int) -> Iterator[float]:
    """Noise: a third of all blocks take half as long again, all vary by five percent."""
    draws = random.Random(seed)
    while True:
        yield 1 + 0.5 * (draws.random() < 0.3) + 0.05 * draws.random()


def calm() -> Iterator[float]:
    return itertools.repeat(1.0)


def table(**factors: float) -> Cost:
    """Seconds of a step: a tenth, times a factor for each value of a plan (`precision_bf16=0.7`)."""

    def cost(variant_plan: plan.Plan) -> float:
        seconds = 0.1
        for row in variant_plan.decisions:
            seconds *= factors.get(f"{row.name}_{str(row.value).lower()}", 1.0)
        return seconds

    return cost


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({"precision_bf16": 0.75, "channels_last_false": 1.3}, {"precision": "bf16", "channels_last": True}),
        ({"precision_bf16": 1.3, "channels_last_false": 0.75}, {"precision": "fp32", "channels_last": False}),
    ],
)
def test_known_delays_are_decided_correctly_despite_noise(
    tmp_path: Path, seed: int, factors: dict[str, float], expected: dict[str, Value]
) -> None:
    measurements = make_tuner(tmp_path, make_machine(), table(**factors), noisy(seed), []).tune(1e9)
    assert list_values(measurements) == expected


def test_a_narrow_loser_is_measured_again_with_a_winner(tmp_path: Path) -> None:
    """bf16 pays in the plain layout only, and that layout only a little by itself."""

    def cost(variant_plan: plan.Plan) -> float:
        plain_layout, in_bf16 = variant_plan.value("channels_last") is False, variant_plan.value("precision") == "bf16"
        return {(False, False): 0.1, (False, True): 0.11, (True, False): 0.095, (True, True): 0.05}[
            plain_layout, in_bf16
        ]

    messages: list[str] = []
    measurements = make_tuner(tmp_path, make_machine(), cost, calm(), messages).tune(1e9)
    assert list_values(measurements) == {"precision": "bf16", "channels_last": False}
    assert says_only(measurements["precision"].text, "bf16-loss-ok-bf16", "0.91x", "0.91-0.91", "1.90x", "1.90-1.90")
    assert [line.split(",")[0] for line in messages[1:-1]] == [
        "tune: precision bf16 0.91x [0.91-0.91]",
        "tune: channels_last false 1.05x [1.05-1.05]",
        "tune: precision bf16 1.90x [1.90-1.90]",
        "tune: channels_last true 0.45x [0.45-0.45]",
    ]


def test_a_clearly_slower_value_is_not_measured_again(tmp_path: Path) -> None:
    messages: list[str] = []
    make_tuner(tmp_path, make_machine(), table(precision_bf16=1.5, channels_last_false=0.8), calm(), messages).tune(1e9)
    assert sum("precision bf16" in line for line in messages) == 1


@pytest.mark.parametrize("flags", [("avx2", "fma"), ("avx2", "avx512f")])
def test_a_capped_number_format_is_never_chosen(tmp_path: Path, flags: tuple[str, ...]) -> None:
    messages: list[str] = []
    measurements = make_tuner(tmp_path, make_machine(flags), table(precision_bf16=0.1), calm(), messages).tune(1e9)
    assert "precision" not in measurements
    assert not any("bf16" in line for line in messages)


def test_without_budget_nothing_is_measured_and_that_is_said(tmp_path: Path) -> None:
    messages: list[str] = []
    assert not make_tuner(tmp_path, make_machine(), table(), calm(), messages).tune(0.0)
    assert says_only(messages, "tune-precision-bf16-measured")
    assert says_only(messages, "tune-channels-last-false")


def busy() -> None:
    while True:
        sum(range(10000))


@pytest.mark.nightly
@pytest.mark.parametrize("slower", [True, False] * 10)
def test_known_delays_beside_a_process_that_computes_without_a_pause(slower: bool) -> None:
    """Real arithmetic, a quarter more of it on one side."""
    matrix = torch.randn(256, 256)

    def side(times: int) -> Callable[[int], float]:
        def steps(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count * times):
                torch.mm(matrix, matrix)
            return time.perf_counter() - start

        return steps

    neighbour = multiprocessing.get_context("spawn").Process(target=busy, daemon=True)
    neighbour.start()
    try:
        step = side(8)(20) / 20
        pair = (
            paired_timing.compare(side(8), side(10), step, 60.0)
            if slower
            else paired_timing.compare(side(10), side(8), step, 60.0)
        )
    finally:
        neighbour.kill()
        neighbour.join()
    assert variants.judge(pair, 0.0, 3600.0).wins is not slower


@pytest.mark.parametrize("slowdown", [1.0, 30.0])
@pytest.mark.parametrize("seconds", [0.05, 0.6, 5.0])
@pytest.mark.parametrize("steps", [120, 540, 900, 3000, 20_000])
def test_measuring_stays_within_its_share_also_when_it_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, seconds: float, slowdown: float
) -> None:
    """Whatever a step takes, and however slow a candidate is: 2 % of the run, and one step that was on its way."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    for module in (tune, tuner_state, variants, paired_timing, numerics_check):
        monkeypatch.setattr(module, "time", clock)

    @dataclass
    class Timed(KnownArm):
        deadline: float = math.inf
        compared_steps: int = variants.COMPARED_STEPS

        def time_steps(self, count: int) -> float:
            now[0] += count * self.cost()
            return count * self.cost()

        def train_step(self) -> Any:
            self.time_steps(1)
            return SimpleNamespace(read=lambda: (1.0, 1.0))

        def read_numbers(self, quiet: bool) -> Any:
            return variants.Variant.read_numbers(self, quiet)  # type: ignore[arg-type]

    cost, messages = table(precision_bf16=slowdown, channels_last_false=slowdown), list[str]()
    tuner = make_tuner(tmp_path, make_machine(), cost, calm(), messages)
    tuner.run = SimpleNamespace(**vars(tuner.run) | {"total_steps": steps, "device": tuner.run.device})  # type: ignore[assignment]
    scale = seconds / 0.1

    def arm(variant_plan: plan.Plan) -> Any:
        run_ = SimpleNamespace(plan=variant_plan, train_mode=lambda: None, model=SimpleNamespace(modules=list))
        return Timed(run_, lambda: scale * cost(variant_plan), compared_steps=tuner.compared_steps)

    monkeypatch.setattr(tuner, "build", arm)
    measurements = tuner.tune(None)
    worst = seconds * max(1.0, slowdown)
    if steps * seconds < tuner_state.MIN_RUN_SECONDS or steps * tuner_state.MEASURING_SHARE < tuner_state.MIN_STEPS:
        assert not measurements
        assert "to measure optimizations" in messages[0]
        # Two steps of the defaults and two of fp32 are within the share of a run of 200 steps.
        if steps * tuner_state.MEASURING_SHARE < 2 * numerics_check.COMPARED_STEPS:
            assert now[0] <= seconds
            assert len(messages) == 1
        else:
            assert now[0] <= tuner_state.MEASURING_SHARE * steps * seconds + worst + 1e-9
            assert all("not compared" in line for line in messages[1:])
    else:
        assert now[0] <= tuner_state.MEASURING_SHARE * steps * seconds + 2 * worst
        assert messages[-1].startswith(
            f"tune: finished in {now[0]:.0f} s of {tuner_state.MEASURING_SHARE * steps * seconds:.0f} s; measured: "
        )
