"""Decisions by a calibration: what its probes say is taken, if they say it clearly, and nothing overrides the job."""

from __future__ import annotations

from dataclasses import replace
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
from drivetrain.plan.chip_profiles import PROFILES, Preference
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import Decision
from drivetrain.plan.plan_table import render
from tests import calibrated, paths

CNN = Workload(layers={"Conv2d": 3, "Linear": 1, "Dropout": 1}, parameters=120_000, trainable=120_000, samples=100)
MLP = Workload(layers={"Linear": 3}, parameters=90_000, trainable=90_000, samples=100)


def job(optimize: str = "", task: str = "image-classification", more: str = "") -> Job:
    text = f"name: tiny\ntask: {task}\ndata: {{train: x}}\ntrain: {{epochs: 3}}\noptimize: {{{optimize}}}\n{more}"
    return job_spec.check(parse(text, "tiny.yaml"))


def here(name: str = "vm-2core-cgroup1") -> Hardware:
    return facts.read_hardware(paths.MACHINES / f"{name}.json")


def row(name: str, asked: Job, machine: Hardware, workload: Workload | None = CNN, **more: object) -> Decision:
    return plans.resolve(asked, machine, workload, **more).row(name)  # type: ignore[arg-type]


def rows_of(name: str, ratio: float, spread: float = 0.02) -> tuple[Probe, ...]:
    return tuple(p for p in calibrated.probes(ratio, spread) if p.setting == name)


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
    found = row(name, job(), calibrated.machine(here(), rows_of(name, ratio)))
    assert (found.value, found.source) == (value, "calibrated")
    assert "2026-11-23" in found.reason
    assert f"{ratio:.2f}x" in found.reason


@pytest.mark.parametrize(("ratio", "spread"), [(1.02, 0.01), (1.3, 0.4), (0.97, 0.01)])
def test_within_the_spread_nothing_is_decided_and_the_plan_says_so(ratio: float, spread: float) -> None:
    found = row("precision", job(), calibrated.machine(here(), rows_of("precision", ratio, spread)))
    assert (found.value, found.source) == ("fp32", "choice")
    assert found.evidence is not None
    assert found.evidence.startswith("no clear difference: ")
    assert "2026-11-23" in found.evidence


def test_the_precedence() -> None:
    machine = calibrated.machine(here(), calibrated.probes(1.6))
    measured = {"precision": Measurement("fp32", "bf16 0.9x", "2026-11-20")}
    assert row("precision", job("precision: fp32"), machine, measured=measured).source == "job"
    assert row("precision", job(), machine, measured=measured).source == "measured"
    assert row("precision", job(), machine).source == "calibrated"
    assert row("precision", job(), machine, plain=True).source == "plain"
    assert row("precision", job(), machine, replay={"precision": "fp32"}).source == "file"
    assert row("precision", job(), here()).source == "choice"


def test_it_comes_before_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"precision": Preference("fp32", "another machine of this kind")}
    monkeypatch.setattr("drivetrain.plan.chip_profiles.PROFILES", (replace(PROFILES[-1], preferences=wanted),))
    assert row("precision", job(), here()).source == "profile"
    assert row("precision", job(), calibrated.machine(here(), calibrated.probes(1.6))).source == "calibrated"


def test_measure_off_and_several_processes_use_none() -> None:
    machine = calibrated.machine(here(), calibrated.probes(1.6))
    assert row("precision", job("measure: off"), machine).source == "choice"
    several = job(more="limits: {processes: 2}\n")
    assert row("precision", several, machine).source == "choice"


def test_a_value_that_is_not_possible_is_not_taken() -> None:
    old = here("codespace-2core-cgroup2")
    found = row("precision", job(), calibrated.machine(old, rows_of("precision", 5.0)))
    assert (found.value, found.source) == ("fp32", "choice")


def test_it_is_provisional_until_the_network_is_known() -> None:
    machine = calibrated.machine(here(), calibrated.probes(1.6))
    assert row("precision", job(), machine, None).provisional
    assert not row("precision", job(), machine, CNN).provisional
    assert not row("cpu_threads", job(), machine, None).provisional


def test_the_probe_is_that_of_the_layers_not_of_the_task() -> None:
    rows = (
        calibrated.probe("precision", "bf16", "fp32", "convolution", 2.0),
        calibrated.probe("precision", "bf16", "fp32", "linear", 0.5),
    )
    machine = calibrated.machine(here(), rows)
    assert row("precision", job(), machine, CNN).value == "bf16"
    assert row("precision", job(), machine, MLP).value == "fp32"


def test_threads_need_all_sizes_to_agree_and_a_quiet_machine() -> None:
    rows = (
        calibrated.probe("cpu_threads", "1", "2", "convolution", 1.8, calibrated.NARROW),
        calibrated.probe("cpu_threads", "1", "2", "convolution", 0.9, calibrated.WIDE),
    )
    assert row("cpu_threads", job(), calibrated.machine(here(), rows)).value == 2
    assert row("cpu_threads", job(), calibrated.machine(here(), rows[:1])).value == 1
    assert row("cpu_threads", job(), calibrated.machine(here(), rows[:1], waited=0.4)).source == "choice"


def test_the_layout_is_that_of_the_number_format_of_the_job() -> None:
    rows = (
        calibrated.probe("channels_last", "true", "false", "convolution", 1.3),
        calibrated.probe("channels_last", "true", "false", "convolution", 0.7, beside="precision=bf16"),
    )
    machine = calibrated.machine(here(), rows)
    assert row("channels_last", job(), machine).value is True
    assert row("channels_last", job("precision: bf16"), machine).value is False


def test_a_clearly_bad_value_is_not_measured() -> None:
    one = next(o for o in optimizations.every() if o.name == "precision")

    def why(ratio: float, asked: Job, spread: float = 0.02) -> str | None:
        machine = calibrated.machine(here(), rows_of("precision", ratio, spread))
        return deciding.explain_hopeless(one, asked, machine, CNN, "bf16", "fp32")

    assert why(0.3, job()) == "calibrated 0.30x fp32 on 2026-11-23"
    assert why(0.95, job()) is None
    assert why(0.7, job(), 0.4) is None
    assert why(1.5, job()) is None
    assert why(0.3, job("measure: full")) is None


@pytest.mark.parametrize("path", sorted(paths.MACHINES.glob("*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("ratio", [0.1, 9.0])
def test_every_machine_gets_a_possible_plan(path: Path, ratio: float) -> None:
    machine = calibrated.machine(facts.read_hardware(path), calibrated.probes(ratio))
    for workload in (None, CNN):
        plan = plans.resolve(job(), machine, workload)
        for one in optimizations.every():
            assert one.refuse(job(), machine, workload, plan.value(one.name)) is None


def test_the_plan_says_that_it_used_probes_of_this_machine_and_from_when() -> None:
    known = calibrated.machine(here(), calibrated.probes(1.6))
    for machine, is_told in ((here(), False), (known, True)):
        with StringIO() as file:
            plan = plans.resolve(job(), machine, CNN)
            Console(file=file, width=120).print(render(plan, job(), machine))
            assert ("`drivetrain calibrate` shows them" in file.getvalue()) == is_told
