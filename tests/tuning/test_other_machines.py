"""`plan --on`: a step's work is counted, and modelled for machines that are not at hand; earlier runs there come first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.errors import SpecError
from drivetrain.hardware import facts
from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec import load_job
from drivetrain.plan import plan as plans
from drivetrain.system.files import write_json
from drivetrain.tuning.elsewhere import other_machines, price_list
from drivetrain.tuning.elsewhere.known_machines import KNOWN_MACHINES, KnownMachine, Rates, find_machines
from drivetrain.tuning.elsewhere.other_machines import LAUNCH_SECONDS, REACHED_SHARE, Measured
from drivetrain.tuning.elsewhere.recorded_times import find_recorded_step
from drivetrain.tuning.elsewhere.step_work import StepWork, count_step_work
from drivetrain.tuning.run_length import RunTimes
from tests import tiny
from tests.messages import says
from tests.paths import IMPORTS, ROOT

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.2}
model: {name: small-cnn, width: 4}
train: {epochs: 3, batch_size: 16}
optimize: {cpu_threads: 1, measure: off}
baselines: off
"""
GIB = 2**30
TIMES = RunTimes(start=5.0, step=0.1, evaluation=1.0, steps_per_epoch=50, peak_bytes=GIB)
HERE = Rates(matmul=1e11, low_matmul=2e11, bandwidth=1e10)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (160, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(160) % 3)
    (tmp_path / "tiny.yaml").write_text(TEXT)
    return tmp_path / "tiny.yaml"


def make_measured(operations: Sequence[tuple[int, int, int]], *, load_seconds: float = 0.0) -> Measured:
    launches = sum(count for _, _, count in operations)
    work = StepWork(tuple(operations), weight_bytes=GIB, saved_bytes=2 * GIB, launches=launches)
    return Measured(TIMES, HERE, "fp32", load_seconds, {"fp32": work, "bf16": work}, cpus=2)


def read_machine(name: str) -> Hardware:
    return facts.read_hardware(ROOT / f"tests/machines/{name}.json")


def test_the_work_of_a_step_is_what_torch_counts(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    work = count_step_work(run)
    batch = next(iter(run.batches.epoch(0, 0)))
    with FlopCounterMode(display=False) as counter:
        run.step(run.mix(run.preprocess(batch, 0)), run.list_local_parts(len(batch)))
    assert sum(flop * count for flop, _, count in work.operations) == counter.get_total_flops() > 0
    weights = sum(p.nbytes for p in run.model.parameters())
    assert 2 * weights < work.weight_bytes < 5 * weights  # gradients, and the optimizer's state
    assert work.saved_bytes > batch.inputs[0].numel()
    assert work.launches == sum(count for _, _, count in work.operations)


def test_the_steps_in_time_of_a_recurrent_layer_follow_one_another(tmp_path: Path) -> None:
    windows, length = np.random.default_rng(0).normal(size=(64, 40, 3)).astype(np.float32), 40
    np.savez(tmp_path / "series.npz", x=windows, y=np.arange(64) % 2)
    text = "name: s\ntask: series-classification\ndata: {train: series.npz, validation: 0.25}\nmodel: "
    (tmp_path / "s.yaml").write_text(
        text + "{name: cnn-lstm, cnn_channels: [8], lstm_hidden: 16}\ntrain: {epochs: 1}\n"
    )
    (tmp_path / "run").mkdir()
    work = count_step_work(tiny.assemble_plain_run(load_job.load(tmp_path / "s.yaml"), tmp_path / "run"))
    assert sum(count for _, _, count in work.operations) > work.launches + length


def test_an_operation_takes_what_it_computes_or_what_it_moves() -> None:
    work = StepWork(((10**9, 10**3, 2), (0, 10**7, 1), (0, 4, 5)), 0, 0, 8)
    seconds = work.compute_seconds(HERE, low_precision=False, least_seconds=1e-6)
    assert seconds == pytest.approx(2 * 10**9 / 1e11 + 10**7 / 1e10 + 5e-6)
    assert work.compute_seconds(HERE, low_precision=True) == pytest.approx(10**9 / 1e11 + 10**7 / 1e10 + 5 * 4 / 1e10)


@pytest.mark.parametrize(
    ("operations", "load_seconds", "is_recorded", "expected"),
    [
        ([(10**12, 8, 1)], 0.0, False, (10**12 / (REACHED_SHARE * 65e12), "compute")),
        ([(8, 8, 1000)], 0.0, False, (1000 * LAUNCH_SECONDS, "host")),
        ([(8, 8, 1000)], 0.0, True, (1000 * other_machines.KERNEL_SECONDS, "compute")),
        ([(8, 8, 1)], 0.5, True, (0.5, "data")),
    ],
)
def test_a_step_on_a_gpu_waits_for_the_slowest_part(
    operations: list[tuple[int, int, int]],
    load_seconds: float,
    is_recorded: bool,
    expected: tuple[float, str],
    job_file: Path,
) -> None:
    (target,) = find_machines("t4")
    plan = plans.resolve(load_job.load(job_file), target.make_hardware(read_machine("vm-2core-cgroup1")))
    assert plan.value("precision") == "fp16"
    measured = make_measured(operations, load_seconds=load_seconds)
    assert other_machines.model_step(measured, target, plan, is_recorded=is_recorded) == pytest.approx(expected)


def test_a_machine_as_fast_as_this_one_takes_as_long(job_file: Path) -> None:
    target = KnownMachine(name="twin", chip="EPYC", rates=HERE, cpus=2, memory=8 * GIB)
    here, job = read_machine("vm-2core-cgroup1"), load_job.load(job_file)
    estimate = other_machines.estimate(make_measured([(10**9, 10**6, 3)]), target, job, here)
    assert estimate.seconds == pytest.approx(TIMES.predict_seconds(job.train))
    assert estimate.fits


def test_what_does_not_fit_says_so(job_file: Path) -> None:
    (target,) = find_machines("rtx3060")
    here, job = read_machine("vm-2core-cgroup1"), load_job.load(job_file)
    measured = make_measured([(10**9, 10**6, 3)])
    assert other_machines.estimate(measured, target, job, here).fits
    large = {key: replace(work, saved_bytes=20 * GIB) for key, work in measured.work.items()}
    assert not other_machines.estimate(replace(measured, work=large), target, job, here).fits


@pytest.mark.parametrize("target", KNOWN_MACHINES, ids=lambda target: target.name)
def test_every_known_machine_has_a_plan(target: KnownMachine, job_file: Path) -> None:
    hardware = target.make_hardware(read_machine("vm-2core-cgroup1"))
    assert target.matches(hardware) or target.gpu is None
    plan = plans.resolve(load_job.load(job_file), hardware)
    has_low_precision = target.gpu is not None and target.gpu.capability >= (7, 0)
    assert (plan.value("precision") in ("bf16", "fp16")) == has_low_precision


@pytest.mark.parametrize(
    ("recording", "name"),
    [("t4-driver580", "t4"), ("l4", "l4"), ("h100", "h100"), ("rtx3060-driver580", "rtx3060"), ("v100", "v100")],
)
def test_a_recorded_machine_is_recognized(recording: str, name: str) -> None:
    assert [target.name for target in KNOWN_MACHINES if target.matches(read_machine(recording))] == [name]


def test_a_codespace_is_recognized() -> None:
    machine = read_machine("codespace-2core-cgroup2")
    assert [target.name for target in KNOWN_MACHINES if target.matches(machine)] == ["codespace-2"]


def test_an_earlier_run_on_such_a_machine_counts_more_than_a_model(tmp_path: Path, job_file: Path) -> None:
    job, (t4, l4) = load_job.load(job_file), find_machines("t4,l4")
    for number, seconds in ((1, 900), (2, 600), (3, None)):  # the newest has not finished
        run = tmp_path / "runs" / f"tiny-00{number}"
        run.mkdir(parents=True)
        write_json(run / "hardware.json", read_machine("t4-driver580").to_json())
        (run / "job.yaml").write_text(TEXT)
        write_json(run / "result.json", {"seconds": seconds, "steps": 300} if seconds else {})
    assert find_recorded_step(tmp_path / "runs", job, t4) == pytest.approx(2.0)
    assert find_recorded_step(tmp_path / "runs", job, l4) is None
    wider = load_job.load(job_file, ["model.width=8"])
    assert find_recorded_step(tmp_path / "runs", wider, t4) is None
    (tmp_path / "runs" / "tiny-002" / "hardware.json").write_text("{")
    assert find_recorded_step(tmp_path / "runs", job, t4) == pytest.approx(3.0)


def test_an_unknown_machine_names_the_known_ones() -> None:
    with pytest.raises(SpecError) as caught:
        find_machines("t4,a1000")
    assert says(str(caught.value), "on-no-known-machine", "'a1000'")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("currency: USD\ndate: yesterday\nper_hour: {t4: 1}\n", "prices.yaml:2:1"),
        ("currency: USD\ndate: 2026-11-28\nper_hour: {t4: cheap}\n", "prices.yaml:3:12"),
        ("currency: USD\ndate: 2026-11-28\nper_hour: {t4: -1}\n", "prices.yaml:3:12"),
    ],
)
def test_a_mistake_in_a_price_list_has_its_place(text: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        price_list.read_price_list(tmp_path / "prices.yaml")
    assert place in str(caught.value)


def test_the_example_of_a_price_list_is_one() -> None:
    prices = price_list.read_price_list(ROOT / price_list.EXAMPLE)
    assert set(prices.per_hour) <= {target.name for target in KNOWN_MACHINES}
    assert prices.compute_price("t4", 7200) == pytest.approx(2 * prices.per_hour["t4"])
    assert prices.compute_price("here", 7200) is None


def run_plan(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", "plan", "tiny.yaml", *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=240, env={"PYTHONPATH": IMPORTS}
    )


@pytest.mark.slow
def test_the_command_writes_nothing_and_prices_each_machine(job_file: Path) -> None:
    before = sorted(job_file.parent.rglob("*"))
    prices = ("--prices", str(ROOT / price_list.EXAMPLE))
    done = run_plan(job_file.parent, "--on", "codespace-2,t4,h200", *prices, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["machines"]
    assert [(row["machine"], row["source"]) for row in rows] == [
        ("here", "measured"),
        *((name, "modelled") for name in ("codespace-2", "t4", "h200")),
    ]
    assert all(row["seconds"] > row["step_seconds"] > 0 and row["fits"] for row in rows)
    assert [row["price"] is None for row in rows] == [True, False, False, True]
    assert sorted(job_file.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "given"),
    [(("--prices", "prices.yaml"), "--prices without --on"), (("--on", "t4", "--hardware", "h.json"), "--on with")],
)
def test_options_that_need_another_are_refused(options: tuple[str, ...], given: str, job_file: Path) -> None:
    (job_file.parent / "h.json").write_text(json.dumps(read_machine("l4").to_json()))
    done = run_plan(job_file.parent, *options)
    assert done.returncode == 2
    assert given in done.stderr
