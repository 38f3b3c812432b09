"""Recorded machines: each loads, is whole and consistent; a bad `--hardware` file is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import SpecError
from drivetrain.hardware.cpu import compute_cpu_budget
from drivetrain.hardware.facts import Hardware, from_json, read_hardware
from tests import paths
from tests.messages import get_message, says_each

MACHINES = sorted(paths.MACHINES.glob("*.json"))
GIB = 2**30


def facts(**changes: Any) -> dict[str, Any]:
    """A good machine's JSON data with top-level facts replaced; ... takes one away."""
    data = json.loads(next(path for path in MACHINES if path.stem == "t4").read_text()) | changes
    return {key: value for key, value in data.items() if value is not ...}


def write_machine(folder: Path, content: str) -> Path:
    path = folder / "machine.json"
    path.write_text(content, encoding="utf-8")
    return path


def read_error_lines(path: Path) -> list[str]:
    """What `load` says about a bad file, without the file's name."""
    with pytest.raises(SpecError) as caught:
        read_hardware(path)
    assert caught.value.exit_code == 2
    return [line.replace(str(path), "FILE") for line in caught.value.lines()]


def test_the_machines_that_the_design_names_are_there() -> None:
    assert {path.stem for path in MACHINES} >= {
        "codespace-2core-cgroup2",
        "vm-2core-cgroup1",
        "laptop",
        "gtx960",
        "gtx1080",
        "gtx1650-4gb",
        "gtx1660",
        "quadro-t1000",
        "gpu-2gb",
        "p100",
        "v100",
        "t4",
        "rtx3060-driver550",
        "rtx3060-driver580",
        "rtx4090",
        "l4",
        "rtx5090",
        "a100",
        "h200",
    }


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_recorded_machine_is_whole(path: Path) -> None:
    machine = read_hardware(path)
    assert machine.name == path.stem
    assert machine.to_json() == from_json(json.loads(json.dumps(machine.to_json()))).to_json()
    assert json.loads(path.read_text()) == json.loads(json.dumps(machine.to_json()))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_recorded_machine_is_consistent(path: Path) -> None:
    machine = read_hardware(path)
    cpu, memory = machine.cpu, machine.memory
    assert cpu.budget == compute_cpu_budget(cpu.affinity, cpu.cpuset, cpu.quota)
    assert 1 <= cpu.cores <= cpu.affinity <= cpu.host
    assert memory.available <= (memory.limit or memory.host) - memory.used
    assert all(0 < gpu.free <= gpu.memory for gpu in machine.gpus)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_what_was_not_read_from_a_machine_says_so(path: Path) -> None:
    machine = read_hardware(path)
    assert all(_has(machine, name) for name in machine.assumed)
    assert machine.assumed or path.stem in ("vm-2core-cgroup1", "h100")


def _has(machine: Hardware, name: str) -> bool:
    part: Any = machine
    for word in name.split("."):
        if not hasattr(part, word):
            return False
        part = getattr(part, word)
    return True


@pytest.mark.parametrize(
    ("stem", "capability", "driver", "gib"),
    [
        ("gtx960", (5, 2), "535", 4),
        ("gtx1080", (6, 1), "550", 8),
        ("p100", (6, 0), "560", 16),
        ("v100", (7, 0), "550", 16),
        ("t4", (7, 5), "550", 15),
        ("gpu-2gb", (6, 1), "535", 2),
        ("rtx3060-driver550", (8, 6), "550", 12),
        ("rtx3060-driver580", (8, 6), "580", 12),
        ("a100", (8, 0), "580", 40),
        ("h200", (9, 0), "580", 140),
        ("rtx5090", (12, 0), "580", 32),
    ],
)
def test_gpus(stem: str, capability: tuple[int, int], driver: str, gib: int) -> None:
    machine = read_hardware(next(path for path in MACHINES if path.stem == stem))
    assert machine.gpu is not None
    assert machine.gpu == machine.gpus[0]
    assert (machine.gpu.capability, machine.gpu.driver.split(".")[0]) == (capability, driver)
    assert round(machine.gpu.memory / GIB) == gib


def test_a_machine_without_a_gpu_has_no_first_gpu() -> None:
    assert read_hardware(next(path for path in MACHINES if path.stem == "laptop")).gpu is None


def test_a_missing_file(tmp_path: Path) -> None:
    assert says_each(
        read_error_lines(tmp_path / "machine.json"),
        [
            get_message("hardware-file-errno-file", 2, "FILE"),
            get_message("possible-json-file-written"),
            get_message("run-command-machine-use", "tests/machines"),
        ],
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "--hardware FILE: Expecting value: line 1 column 1 (char 0)"),
        ('{"name": ', "--hardware FILE: Expecting value: line 1 column 10 (char 9)"),
        ("[]", "--hardware FILE: it holds a list, not an object"),
        ('"t4"', "--hardware FILE: it holds a value, not an object"),
    ],
)
def test_a_file_that_is_no_machine(tmp_path: Path, content: str, expected: str) -> None:
    assert read_error_lines(write_machine(tmp_path, content))[0] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpus": 4}, ["FILE: unknown fact 'cpus'", 'did you mean "cpu"?']),
        ({"memory": {"hots": 1}}, ["FILE: memory: unknown fact 'hots'", 'did you mean "host"?']),
        ({"gpus": [{"nam": "T4"}]}, ["FILE: gpus: unknown fact 'nam'", 'did you mean "name"?']),
        ({"storage": ...}, ["FILE: ", "'storage'", "all keys that `drivetrain plan --json` without JOB prints"]),
        (
            {"cpu": {"model": "x"}},
            ["FILE: cpu: ", "'budget'", "all keys that `drivetrain plan --json` without JOB prints"],
        ),
    ],
)
def test_unknown_and_missing_facts(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    text = "\n".join(read_error_lines(write_machine(tmp_path, json.dumps(facts(**changes)))))
    assert all(part in text for part in expected), text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": 5}, "FILE: gpus: is 5"),
        ({"gpus": ["T4"]}, "FILE: gpus: is 'T4'"),
        ({"cpu": None}, "FILE: cpu: is None"),
        ({"cgroup": "2"}, "FILE: cgroup: is '2'"),
        ({"torch": {"version": 2, "cuda": None}}, "FILE: torch: version: is 2"),
        ({"assumed": [1]}, "FILE: assumed: is 1"),
    ],
)
def test_a_fact_of_the_wrong_type(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert read_error_lines(write_machine(tmp_path, json.dumps(facts(**changes))))[0] == expected
