"""Decisions on Arm and on Macs: they name what these chips have, and never what x86 has.

The machines in tests/machines follow public facts: the `Features` of Graviton 2 (Neoverse-N1), 3 (V1) and 4 (V2), of
Ampere Altra and of a Raspberry Pi 5, and those of an M1 in Docker's virtual machine, as listings of /proc/cpuinfo show
them; for the Macs `sysctl hw`. Counts of CPUs and sizes of memory are those of usual machines of that kind.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.hardware.facts import Hardware, Libraries, read_hardware
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.optimizations import cpu_threads, openmp_runtime, precision
from drivetrain.plan import plan as plans
from tests import paths
from tests.messages import begins_with, says_only
from tests.paths import ROOT

STEMS = [
    "graviton2",
    "graviton3",
    "graviton4",
    "ampere-altra",
    "raspberry-pi5",
    "macbook-m1-docker",
    "macbook-m1",
    "macbook-m2",
]
X86 = re.compile(r"avx|amx|\bmkl|iomp5|intel|hyperthread", re.IGNORECASE)


def machine(stem: str) -> Hardware:
    return read_hardware(paths.MACHINES / f"{stem}.json")


@pytest.fixture
def job() -> Job:
    return job_spec.load(ROOT / "jobs" / "digits.yaml")


@pytest.mark.parametrize("stem", STEMS)
def test_no_reason_names_x86(job: Job, stem: str) -> None:
    arm_plan = plans.resolve(job, machine(stem))
    assert [d.name for d in arm_plan.decisions if X86.search(d.reason)] == []
    assert X86.search(" ".join(arm_plan.notes)) is None


@pytest.mark.parametrize(
    ("stem", "has_bf16"), [("graviton2", False), ("graviton4", True), ("macbook-m1", False), ("macbook-m2", True)]
)
def test_bf16_is_refused_without_its_instructions_and_measured_with_them(job: Job, stem: str, has_bf16: bool) -> None:
    hardware = machine(stem)
    choice, refusal = precision.choose(job, hardware, None), precision.refuse(job, hardware, None, "bf16")
    assert choice.value == "fp32"
    if has_bf16:
        assert says_only(choice.reason, "some-releases-torch-slow")
        assert refusal is None
        assert "bf16" in precision.candidates(job, hardware, None)
    else:
        assert says_only(choice.reason, "cpu-bf16-instructions-bf16")
        assert says_only(refusal, "cpu-bf16-instructions-bf16")
    assert precision.refuse(job, hardware, None, "fp16") is None


def test_threads_are_the_fast_cores(job: Job) -> None:
    mac = machine("macbook-m2")
    choice = cpu_threads.choose(job, mac, None)
    assert (choice.value, choice.reason.partition(":")[0]) == (4, "the 4 fast ones of 8 cores")
    few = replace(mac, cpu=replace(mac.cpu, quota=2.0, budget=2))
    assert cpu_threads.choose(job, few, None).value == 2


def test_an_installed_libomp_is_not_presumed_faster(job: Job) -> None:
    graviton = machine("graviton3")
    with_it = replace(graviton, libraries=Libraries(libomp="/usr/lib/llvm-14/lib/libomp.so.5"))
    assert openmp_runtime.choose(job, with_it, None).value == "off"
    assert openmp_runtime.refuse(job, with_it, None, "libomp") is None


@pytest.mark.parametrize("stem", ["macbook-m1", "macbook-m2"])
def test_a_mac_is_told_that_its_gpu_is_not_used(job: Job, stem: str) -> None:
    assert says_only(plans.resolve(job, machine(stem)).notes, "gpu-apple-gpu-mps")


def test_emulation_is_a_note(job: Job, tmp_path: Path) -> None:
    pi = machine("raspberry-pi5")
    emulated = replace(pi, cpu=replace(pi.cpu, emulated=True))
    assert begins_with(plans.resolve(job, emulated).notes, "cpu-image-another-kind")
