"""The file of a calibration: it comes back as it was, and a file that cannot be used says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.hardware import calibration_file, facts
from drivetrain.hardware.calibration import Probe
from drivetrain.hardware.facts import Hardware
from tests import calibrations, paths
from tests.messages import get_message, says_each


@pytest.fixture
def machine(tmp_path: Path) -> Hardware:
    base = facts.read_hardware(paths.MACHINES / "vm-2core-cgroup1.json")
    return replace(base, storage=replace(base.storage, cache=str(tmp_path / "cache")))


def store_calibration(machine: Hardware) -> Path:
    calibration = calibrations.add_calibration(machine, calibrations.make_probes(1.5)).calibration
    assert calibration is not None
    calibration_file.write_calibration(machine, calibration)
    return calibration_file.find_path(machine)


def test_it_comes_back_as_it_was(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    store_calibration(machine)
    calibrated_machine = calibrations.add_calibration(machine, calibrations.make_probes(1.5))
    assert calibration_file.read_calibration(machine) == (calibrated_machine.calibration, None)
    monkeypatch.setenv(calibration_file.SWITCH_VARIABLE, "on")
    assert calibration_file.add_calibration(machine) == calibrated_machine
    monkeypatch.setenv(calibration_file.SWITCH_VARIABLE, "off")
    assert calibration_file.add_calibration(machine) == machine


def test_facts_carry_it_to_another_machine(machine: Hardware) -> None:
    calibrated_machine = calibrations.add_calibration(machine, calibrations.make_probes(1.5))
    assert facts.from_json(json.loads(json.dumps(calibrated_machine.to_json()))) == calibrated_machine


def test_without_a_file_there_is_none_and_nothing_is_wrong(machine: Hardware) -> None:
    assert calibration_file.read_calibration(machine) == (None, None)


def truncate(file: Path) -> None:
    file.write_text(file.read_text()[:200])


def binary(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")


def write_list(file: Path) -> None:
    file.write_text("[1, 2]")


def newer(file: Path) -> None:
    data = json.loads(file.read_text())
    data["probes"][0]["unit"] = "s"
    file.write_text(json.dumps(data))


def not_a_number(file: Path) -> None:
    data = json.loads(file.read_text())
    data["probes"][0]["ratio"] = None
    file.write_text(json.dumps(data))


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [truncate, binary, write_list, newer, not_a_number, folder])
def test_a_damaged_file_says_so(machine: Hardware, damage: object) -> None:
    file = store_calibration(machine)
    damage(file)
    calibration, problem = calibration_file.read_calibration(machine)
    assert calibration is None
    assert problem is not None
    assert str(file) in problem
    assert "cannot be read" in problem


def test_a_file_of_another_machine_is_not_used(machine: Hardware) -> None:
    file = store_calibration(machine)
    data = json.loads(file.read_text())
    data["key"] = "0" * 32
    file.write_text(json.dumps(data))
    assert says_each(
        calibration_file.read_calibration(machine), (None, get_message("calibration-another-machine-version", file))
    )


@pytest.mark.parametrize(
    "other",
    [
        lambda m: replace(m, cpu=replace(m.cpu, model="another chip")),
        lambda m: replace(m, cpu=replace(m.cpu, flags=("avx2",), capped="ONEDNN_MAX_CPU_ISA")),
        lambda m: replace(m, cpu=replace(m.cpu, budget=1)),
        lambda m: replace(m, cpu=replace(m.cpu, quota=1.5)),
        lambda m: replace(m, torch=replace(m.torch, version="9.9")),
        lambda m: replace(m, libraries=replace(m.libraries, tcmalloc="/usr/lib/other.so")),
        lambda m: replace(m, place="docker" if m.place != "docker" else "host"),
    ],
)  # fmt: skip
def test_it_holds_for_one_chip_limit_and_version(machine: Hardware, other: object) -> None:
    assert calibration_file.compute_key(other(machine)) != calibration_file.compute_key(machine)
    used = replace(machine, memory=replace(machine.memory, used=machine.memory.used + 1))
    assert calibration_file.compute_key(used) == calibration_file.compute_key(machine)


def test_the_nearest_probe_is_of_the_same_work_and_of_similar_size(machine: Hardware) -> None:
    narrow = calibrations.make_probe("precision", "bf16", "fp32", "linear", 0.8, calibrations.NARROW)
    wide = calibrations.make_probe("precision", "bf16", "fp32", "linear", 1.7, calibrations.WIDE)
    other = calibrations.make_probe("precision", "bf16", "fp32", "recurrent", 3.0, 200_000)
    calibration = calibrations.add_calibration(machine, (narrow, wide, other)).calibration
    assert calibration is not None

    def nearest(size: int) -> tuple[Probe, ...]:
        return calibration.find_nearest("precision", "linear", size)

    assert nearest(1) == nearest(50_000) == (narrow,)
    assert nearest(200_000) == nearest(10_000_000) == (wide,)
    assert calibration.find_nearest("precision", "attention", 1) == ()
