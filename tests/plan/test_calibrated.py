"""Decisions by a calibration: what its probes say is taken, if they say it clearly, and nothing overrides the job."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from drivetrain import optimizations
from drivetrain.hardware import facts
from drivetrain.hardware.calibration import Probe
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan import calibrated as deciding
from drivetrain.plan import plan as plans
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import Decision
from drivetrain.plan.plan_table import render
from tests import calibrations, paths

CNN = Workload(layers={"Conv2d": 3, "Linear": 1, "Dropout": 1}, parameters=120_000, trainable=120_000, samples=100)
MLP = Workload(layers={"Linear": 3}, parameters=90_000, trainable=90_000, samples=100)


def make_job(optimize: str = "", task: str = "image-classification", settings: str = "") -> Job:
    text = f"name: tiny\ntask: {task}\ndata: {{train: x}}\ntrain: {{epochs: 3}}\noptimize: {{{optimize}}}\n{settings}"
    return job_spec.check(parse(text, "tiny.yaml"))


def read_machine(name: str = "vm-2core-cgroup1") -> Hardware:
    return facts.read_hardware(paths.MACHINES / f"{name}.json")


def row(name: str, job: Job, machine: Hardware, workload: Workload | None = CNN, **options: object) -> Decision:
    return plans.resolve(job, machine, workload, **options).row(name)  # type: ignore[arg-type]


def rows_of(name: str, ratio: float, spread: float = 0.02) -> tuple[Probe, ...]:
    return tuple(p for p in calibrations.make_probes(ratio, spread) if p.setting == name)


@pytest.mark.parametrize(
    ("name", "ratio", "value"),
    [
        ("precision", 1.6, "bf16"),
        ("precision", 0.2, "fp32"),
        ("channels_last", 1.3, True),
        ("channels_last", 0.8, False),
        ("packed_dropout", 0.7, False),
        ("packed_dropout", 1.4, True),
        ("cpu_threads", 1.5, 1),
        ("cpu_threads", 0.6, 2),
    ],
)
def test_the_clearly_faster_value_is_taken(name: str, ratio: float, value: object) -> None:
    decision = row(name, make_job(), calibrations.add_calibration(read_machine(), rows_of(name, ratio)))
    assert (decision.value, decision.source) == (value, "calibrated")
    assert "2026-11-23" in decision.reason
    assert f"{ratio:.2f}x" in decision.reason


@pytest.mark.parametrize(("ratio", "spread"), [(1.02, 0.01), (1.3, 0.4), (0.97, 0.01)])
def test_within_the_spread_nothing_is_decided_and_the_plan_says_so(ratio: float, spread: float) -> None:
    decision = row(
        "precision", make_job(), calibrations.add_calibration(read_machine(), rows_of("precision", ratio, spread))
    )
    assert (decision.value, decision.source) == ("fp32", "choice")
    assert decision.evidence is not None
    assert decision.evidence.startswith("no clear difference: ")
    assert "2026-11-23" in decision.evidence


def test_the_precedence() -> None:
    machine = calibrations.add_calibration(read_machine(), calibrations.make_probes(1.6))
    measured = {"precision": Measurement("fp32", "bf16 0.9x", "2026-11-20")}
    assert row("precision", make_job("precision: fp32"), machine, measured=measured).source == "job"
    assert row("precision", make_job(), machine, measured=measured).source == "measured"
    assert row("precision", make_job(), machine).source == "calibrated"
    assert row("precision", make_job(), machine, plain=True).source == "plain"
    assert row("precision", make_job(), machine, replay={"precision": "fp32"}).source == "file"
    assert row("precision", make_job(), read_machine()).source == "choice"


def test_measure_off_and_several_processes_use_none() -> None:
    machine = calibrations.add_calibration(read_machine(), calibrations.make_probes(1.6))
    assert row("precision", make_job("measure: off"), machine).source == "choice"
    processes_job = make_job(settings="limits: {processes: 2}\n")
    assert row("precision", processes_job, machine).source == "choice"


def test_a_value_that_is_not_possible_is_not_taken() -> None:
    machine = read_machine("codespace-2core-cgroup2")
    decision = row("precision", make_job(), calibrations.add_calibration(machine, rows_of("precision", 5.0)))
    assert (decision.value, decision.source) == ("fp32", "choice")


def test_it_is_provisional_until_the_network_is_known() -> None:
    machine = calibrations.add_calibration(read_machine(), calibrations.make_probes(1.6))
    assert row("precision", make_job(), machine, None).provisional
    assert not row("precision", make_job(), machine, CNN).provisional
    assert not row("cpu_threads", make_job(), machine, None).provisional


def test_the_probe_is_that_of_the_layers_not_of_the_task() -> None:
    rows = (
        calibrations.make_probe("precision", "bf16", "fp32", "convolution", 2.0),
        calibrations.make_probe("precision", "bf16", "fp32", "linear", 0.5),
    )
    machine = calibrations.add_calibration(read_machine(), rows)
    assert row("precision", make_job(), machine, CNN).value == "bf16"
    assert row("precision", make_job(), machine, MLP).value == "fp32"


def test_threads_need_all_sizes_to_agree_and_a_quiet_machine() -> None:
    rows = (
        calibrations.make_probe("cpu_threads", "1", "2", "convolution", 1.8, calibrations.NARROW),
        calibrations.make_probe("cpu_threads", "1", "2", "convolution", 0.9, calibrations.WIDE),
    )
    assert row("cpu_threads", make_job(), calibrations.add_calibration(read_machine(), rows)).value == 2
    assert row("cpu_threads", make_job(), calibrations.add_calibration(read_machine(), rows[:1])).value == 1
    assert (
        row("cpu_threads", make_job(), calibrations.add_calibration(read_machine(), rows[:1], waited=0.4)).source
        == "choice"
    )


def test_the_layout_is_that_of_the_number_format_of_the_job() -> None:
    rows = (
        calibrations.make_probe("channels_last", "true", "false", "convolution", 1.3),
        calibrations.make_probe("channels_last", "true", "false", "convolution", 0.7, beside="precision=bf16"),
    )
    machine = calibrations.add_calibration(read_machine(), rows)
    assert row("channels_last", make_job(), machine).value is True
    assert row("channels_last", make_job("precision: bf16"), machine).value is False


def test_a_clearly_bad_value_is_not_measured() -> None:
    precision = next(o for o in optimizations.every() if o.name == "precision")

    def explain(ratio: float, job: Job, spread: float = 0.02) -> str | None:
        machine = calibrations.add_calibration(read_machine(), rows_of("precision", ratio, spread))
        return deciding.explain_hopeless(precision, job, machine, CNN, "bf16", "fp32")

    assert explain(0.3, make_job()) == "calibrated 0.30x fp32 on 2026-11-23"
    assert explain(0.95, make_job()) is None
    assert explain(0.7, make_job(), 0.4) is None
    assert explain(1.5, make_job()) is None
    assert explain(0.3, make_job("measure: full")) is None


@pytest.mark.parametrize("path", sorted(paths.MACHINES.glob("*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("ratio", [0.1, 9.0])
def test_every_machine_gets_a_possible_plan(path: Path, ratio: float) -> None:
    machine = calibrations.add_calibration(facts.read_hardware(path), calibrations.make_probes(ratio))
    for workload in (None, CNN):
        plan = plans.resolve(make_job(), machine, workload)
        for optimization in optimizations.every():
            assert optimization.refuse(make_job(), machine, workload, plan.value(optimization.name)) is None


def test_the_plan_says_that_it_used_probes_of_this_machine_and_from_when() -> None:
    calibrated_machine = calibrations.add_calibration(read_machine(), calibrations.make_probes(1.6))
    for machine, is_told in ((read_machine(), False), (calibrated_machine, True)):
        with StringIO() as file:
            plan = plans.resolve(make_job(), machine, CNN)
            Console(file=file, width=120).print(render(plan, make_job(), machine))
            assert ("`drivetrain calibrate` shows them" in file.getvalue()) == is_told
