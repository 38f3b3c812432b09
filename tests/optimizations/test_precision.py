"""Where the rule takes bf16 on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivetrain.hardware import facts
from drivetrain.hardware.facts import Hardware
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.optimizations import precision
from drivetrain.plan import plan
from tests.messages import says
from tests.paths import MACHINES

CLASSES, NUMBERS = Workload(layers={"Linear": 3}), Workload(layers={"Linear": 3}, numeric=True)


def read_machine(*flags: str, machine: str = "codespace-2core-cgroup2", capped: str | None = None) -> Hardware:
    hardware = facts.read_hardware(MACHINES / f"{machine}.json")
    return replace(hardware, cpu=replace(hardware.cpu, flags=(*hardware.cpu.flags, *flags), capped=capped))


@pytest.mark.parametrize(
    ("hardware", "settings", "workload", "value"),
    [
        (read_machine("avx512_bf16"), "", CLASSES, "bf16"),
        (read_machine("amx_bf16"), "", None, "bf16"),
        (read_machine("avx512_fp16"), "", CLASSES, "fp32"),
        (read_machine(capped="ATEN_CPU_CAPABILITY=avx2"), "", CLASSES, "fp32"),
        (read_machine("avx512_bf16"), "", NUMBERS, "fp32"),
        (read_machine("avx512_bf16"), 'optimize: {measure: "off"}', CLASSES, "fp32"),
        (read_machine("avx512_bf16"), "limits: {processes: 2}", CLASSES, "fp32"),
        (replace(read_machine("avx512_bf16"), machines=2), "", CLASSES, "fp32"),
        (read_machine(machine="graviton4"), "", CLASSES, "fp32"),
        (read_machine("avx512_bf16"), "optimize: {precision: fp32}", CLASSES, "fp32"),
        (read_machine("avx512_bf16"), "optimize: {precision: bf16}", NUMBERS, "bf16"),
    ],
)
def test_bf16_for_classes_where_the_cpu_has_it(
    hardware: Hardware, settings: str, workload: Workload | None, value: str
) -> None:
    text = "name: a\ntask: tabular-classification\ndata: {train: x.csv, target: y}\n"
    job = job_spec.check(parse(text + settings, "job.yaml"))
    assert plan.resolve(job, hardware, workload).value("precision") == value


@pytest.mark.parametrize("workload", [None, NUMBERS])
def test_a_regression_stays_in_fp32_and_nothing_else_is_measured(workload: Workload | None) -> None:
    hardware = read_machine("avx512_bf16", "amx_bf16")
    job = job_spec.check(parse("name: a\ntask: tabular-regression\ndata: {train: x.csv, target: y}\n", "job.yaml"))
    choice = precision.choose(job, hardware, workload)
    assert choice.value == "fp32"
    assert says(choice.reason, "numbers-predicted-which-rounding")
    assert precision.candidates(job, hardware, NUMBERS) == ["fp32"]
