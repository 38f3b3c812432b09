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
import torch
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.errors import SpecError
from drivetrain.hardware import facts
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec import load_job
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.models.flop_counter import FlopCounter
from drivetrain.plan import plan as plans
from drivetrain.system.files import write_json
from drivetrain.tuning.elsewhere import machine_catalog, machine_estimate
from drivetrain.tuning.elsewhere.machine_catalog import CATALOG, CatalogMachine, Rates, find_machines
from drivetrain.tuning.elsewhere.machine_estimate import (
    KERNEL_SECONDS,
    LAUNCH_SECONDS,
    REACHED_SHARE,
    Estimate,
    Measured,
    StepWork,
    find_recorded_step,
)
from drivetrain.tuning.processes.count_work import count_step_work
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
    return Measured(TIMES, HERE, TIMES.step, load_seconds, {"fp32": work, "bf16": work}, data_bytes=0, cpus=2)


def read_machine(name: str) -> Hardware:
    return facts.read_hardware(ROOT / f"tests/machines/{name}.json")


def test_the_work_of_a_step_is_what_torch_counts(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    work = count_step_work(run)
    batches = list(run.batches.epoch(0, 0))
    with FlopCounterMode(display=False) as counter:
        for batch in batches:
            run.step(run.mix(run.preprocess(batch, 0)), run.list_local_parts(len(batch)))
    flop = sum(flop * count for flop, _, count in work.operations)
    assert flop > 0
    assert flop == pytest.approx(counter.get_total_flops() / len(batches), rel=0.05)
    weights = sum(p.nbytes for p in run.model.parameters())
    assert 2 * weights < work.weight_bytes < 5 * weights  # gradients, and the optimizer's state
    assert work.saved_bytes > batches[0].inputs[0].numel()
    assert work.launches == pytest.approx(sum(count for _, _, count in work.operations))


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


def test_a_divided_batch_keeps_less(tmp_path: Path) -> None:
    whole, divided = (
        count_step_work(tiny.assemble_run(tmp_path, tiny.job(), settings={"micro_batch": size})) for size in ("off", 4)
    )
    assert divided.saved_bytes < whole.saved_bytes / 2


def test_averaged_weights_are_counted(tmp_path: Path) -> None:
    without, averaged = (count_step_work(tiny.assemble_run(tmp_path, tiny.job(train))) for train in ("", "ema: 0.9"))
    assert averaged.weight_bytes > 1.2 * without.weight_bytes


def test_attention_on_a_cpu_has_products() -> None:
    query = torch.rand(2, 4, 64, 16)
    counter = FlopCounter()
    with torch.no_grad(), counter:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert counter.get_total_flops() == 2 * (2 * 2 * 4 * 64 * 64 * 16)


@pytest.mark.parametrize(
    ("operations", "load_seconds", "step_graph", "expected"),
    [
        ([(10**12, 8, 1)], 0.0, False, (10**12 / (REACHED_SHARE * 65e12), "compute")),
        ([(8, 8, 1000)], 0.0, False, (1000 * LAUNCH_SECONDS, "host")),
        ([(8, 8, 1000)], 0.0, True, (1000 * KERNEL_SECONDS, "compute")),
        ([(8, 8, 1)], 0.5, True, (0.5, "data")),
    ],
)
def test_a_step_on_a_gpu_waits_for_the_slowest_part(
    operations: list[tuple[int, int, int]],
    load_seconds: float,
    step_graph: bool,
    expected: tuple[float, str],
    job_file: Path,
) -> None:
    (machine,) = find_machines("t4")
    plan = plans.resolve(load_job.load(job_file), machine.make_hardware(read_machine("vm-2core-cgroup1")))
    assert (plan.value("precision"), plan.value("step_graph")) == ("fp16", False)
    measured = make_measured(operations, load_seconds=load_seconds)
    step = machine_estimate.model_step(measured, machine, plan.with_values({"step_graph": step_graph}))
    assert step == pytest.approx(expected)


def estimate(name: str, job: Job, measured: Measured | None = None) -> Estimate:
    (machine,) = find_machines(name)
    here = read_machine("vm-2core-cgroup1")
    return machine_estimate.estimate_machine(
        measured or make_measured([(10**9, 10**6, 3)]), machine, job, here, plain=False
    )


@pytest.mark.parametrize(
    ("assignments", "name", "reason"),
    [
        (["optimize.precision=bf16"], "gtx1080", "optimize.precision"),
        (["limits.gpus=none"], "t4", "limits.gpus"),
    ],
)
def test_a_machine_that_refuses_the_job_is_a_row_of_its_own(
    assignments: list[str], name: str, reason: str, job_file: Path
) -> None:
    row = estimate(name, load_job.load(job_file, assignments))
    assert (row.source, row.seconds, row.fits) == ("refused", None, False)
    assert reason in row.reason
    assert estimate("a100", load_job.load(job_file)).source == "modelled"


def test_limits_of_the_job_hold_elsewhere(job_file: Path) -> None:
    job, limited = load_job.load(job_file), load_job.load(job_file, ["limits.cpus=2"])
    four, two = (estimate("codespace-4", one).step_seconds for one in (job, limited))
    assert four is not None
    # The job's cpu_threads: 1 holds on all machines.
    assert four == estimate("codespace-2", job).step_seconds
    threads = ["optimize.cpu_threads=auto"]
    four = estimate("codespace-4", load_job.load(job_file, threads)).step_seconds
    two = estimate("codespace-4", load_job.load(job_file, [*threads, "limits.cpus=2"])).step_seconds
    assert four is not None
    assert two == pytest.approx(2 * four)
    assert estimate("rtx3060", load_job.load(job_file, ["limits.gpu_memory=2g"])).memory_limit == 2 * GIB


def test_a_machine_as_fast_as_this_one_takes_as_long(job_file: Path) -> None:
    twin = CatalogMachine(name="twin", chip="EPYC", rates=HERE, cpus=1, memory=8 * GIB)
    here, job = read_machine("vm-2core-cgroup1"), load_job.load(job_file)
    row = machine_estimate.estimate_machine(make_measured([(10**9, 10**6, 3)]), twin, job, here, plain=False)
    assert row.seconds == pytest.approx(TIMES.predict_seconds(job.train))
    assert row.fits


def test_what_does_not_fit_says_so(job_file: Path) -> None:
    job, measured = load_job.load(job_file), make_measured([(10**9, 10**6, 3)])
    assert estimate("rtx3060", job, measured).fits
    large = {key: replace(work, saved_bytes=20 * GIB) for key, work in measured.work.items()}
    assert not estimate("rtx3060", job, replace(measured, work=large)).fits


@pytest.mark.parametrize("machine", CATALOG, ids=lambda machine: machine.name)
def test_every_machine_of_the_catalog_has_a_plan(machine: CatalogMachine, job_file: Path) -> None:
    hardware = machine.make_hardware(read_machine("vm-2core-cgroup1"))
    assert machine.matches(hardware) or machine.gpu is None
    plan = plans.resolve(load_job.load(job_file), hardware)
    has_low_precision = machine.gpu is not None and machine.gpu.capability >= (7, 0)
    assert (plan.value("precision") in ("bf16", "fp16")) == has_low_precision


@pytest.mark.parametrize(
    ("recording", "name"),
    [("t4-driver580", "t4"), ("l4", "l4"), ("h100", "h100"), ("rtx3060-driver580", "rtx3060"), ("v100", "v100")],
)
def test_a_recorded_machine_is_recognized(recording: str, name: str) -> None:
    assert [machine.name for machine in CATALOG if machine.matches(read_machine(recording))] == [name]


def test_a_codespace_is_recognized() -> None:
    machine = read_machine("codespace-2core-cgroup2")
    assert [one.name for one in CATALOG if one.matches(machine)] == ["codespace-2"]


def write_run(runs: Path, name: str, job: Job, result: dict[str, float]) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    write_json(folder / "hardware.json", read_machine("t4-driver580").to_json())
    (folder / "job.yaml").write_text(spec_text(job))
    write_json(folder / "result.json", result)
    return folder


def test_an_earlier_run_on_such_a_machine_counts_more_than_a_model(tmp_path: Path, job_file: Path) -> None:
    job, (t4, l4), runs = load_job.load(job_file), find_machines("t4,l4"), tmp_path / "runs"
    longer = load_job.load(job_file, ["train.epochs=9"])
    write_run(runs, "tiny-001", longer, {"seconds": 900, "steps": 300})
    newest = write_run(runs, "tiny-1000", job, {"seconds": 600, "steps": 300})
    write_run(runs, "tiny-1001", job, {})  # it has not finished
    write_run(runs, "tiny-9zz-001", job, {"seconds": 1, "steps": 300})
    assert find_recorded_step(runs, job, t4) == pytest.approx(2.0)
    assert find_recorded_step(runs, job, l4) is None
    for assignment in (
        "model.width=8",
        "data.image_size=16",
        "train.ema=0.9",
        "optimize.precision=fp32",
        "limits.processes=2",
    ):
        assert find_recorded_step(runs, load_job.load(job_file, [assignment]), t4) is None
    (newest / "hardware.json").write_text("{")
    assert find_recorded_step(runs, job, t4) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "result", [{"seconds": -5, "steps": 10}, {"seconds": 1e300, "steps": 1}, {"seconds": 1, "steps": 0.5}]
)
def test_a_damaged_result_is_no_record(result: dict[str, float], tmp_path: Path, job_file: Path) -> None:
    job, (t4,) = load_job.load(job_file), find_machines("t4")
    write_run(tmp_path / "runs", "tiny-001", job, result)
    assert find_recorded_step(tmp_path / "runs", job, t4) is None


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
        ("currency: USD\ndate: 2026-11-28\nper_hour: {T4: 1}\n", "prices.yaml:3:1"),
    ],
)
def test_a_mistake_in_a_price_list_has_its_place(text: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        machine_catalog.read_price_list(tmp_path / "prices.yaml")
    assert place in str(caught.value)


def test_the_example_of_a_price_list_is_one() -> None:
    prices = machine_catalog.read_price_list(ROOT / machine_catalog.EXAMPLE)
    assert set(prices.per_hour) <= {machine.name for machine in CATALOG}
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
    prices = ("--prices", str(ROOT / machine_catalog.EXAMPLE))
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
    [
        (("--prices", "prices.yaml"), "--prices without --on"),
        (("--on", "t4", "--hardware", "h.json"), "--on with"),
        (("--on", "t4", "--time"), "--on with --time"),
        (("--on", ""), "--on"),
    ],
)
def test_options_that_need_another_are_refused(options: tuple[str, ...], given: str, job_file: Path) -> None:
    (job_file.parent / "h.json").write_text(json.dumps(read_machine("l4").to_json()))
    done = run_plan(job_file.parent, *options)
    assert done.returncode == 2
    assert given in done.stderr
