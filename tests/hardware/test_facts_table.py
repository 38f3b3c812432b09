"""The table of facts: within 100 columns, plain in a log, host beside allowed, nothing of weight left out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from drivetrain.hardware.facts import Hardware, Torch, read_hardware
from drivetrain.hardware.facts_table import render_facts
from tests import paths
from tests.messages import says

MACHINES = sorted(paths.MACHINES.glob("*.json"))


def machine(stem: str) -> Hardware:
    return read_hardware(next(path for path in MACHINES if path.stem == stem))


def print_table(hardware: Hardware) -> str:
    """The table where nothing has to wrap, runs of spaces made one."""
    return " ".join(log_table(hardware, 250).split())


def log_table(hardware: Hardware, width: int) -> str:
    log = io.StringIO()
    Console(file=log, width=width).print(render_facts(hardware))
    return log.getvalue()


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_log_gets_plain_lines_of_100_columns(path: Path) -> None:
    text = log_table(read_hardware(path), 100)
    assert max(map(len, text.splitlines())) <= 100
    assert all(letter == "\n" or letter.isprintable() for letter in text)


@pytest.mark.parametrize(
    ("stem", "parts"),
    [
        (
            "codespace-2core-cgroup2",
            [
                "facts of codespace-2core-cgroup2",
                "environment docker cgroup v2",
                "image* cpu",
                "logical CPUs* 2 2 (affinity 2, cpuset 2, quota 2)",
                "physical cores* 1, shared by hyperthreads",
                "memory 7.8 GiB 4.0 GiB (limit 4.0 GiB, 692 KiB in use, swap off)",
                "/dev/shm* 256 MiB, noexec",
                "torch* 2.13.0+cpu (CPU build)",
                "/usr/local/lib/libiomp5.so",
                "GPU none",
            ],
        ),
        ("vm-2core-cgroup1", ["(affinity 2, cpuset 2, no quota)", "no limit", "preloadable libraries none"]),
        (
            "l4",
            [
                "(affinity 8, cpuset 8, quota 6)",
                "NVIDIA L4, 22.5 GiB, capability 8.9, driver 580.95.05",
                "22.2 GiB free",
                "torch not installed",
            ],
        ),
    ],
)
def test_text_of_the_facts_table(stem: str, parts: list[str]) -> None:
    text = print_table(machine(stem))
    assert [part for part in parts if part not in text] == [], text


def test_assumed_facts_have_a_star_and_a_note() -> None:
    text = print_table(machine("t4"))
    assert "GPU 0*" in text
    assert says(text, "assumed-read-machine-cpu")
    assert "*" not in print_table(machine("vm-2core-cgroup1"))


def test_gpu_trouble_is_a_note() -> None:
    text = print_table(replace(machine("laptop"), gpu_trouble="no NVIDIA driver is loaded"))
    assert says(text, "note-gpu-nvidia-driver")


def test_missing_facts_are_shown_as_missing() -> None:
    laptop = machine("laptop")
    storage = replace(laptop.storage, shm=None, runs_free=None, cache_writable=False, cache_exec=False)
    bare = replace(laptop, storage=storage, compiler=None, cgroup=0, torch=Torch(version="2.7.1", cuda="12.6"))
    text = print_table(bare)
    parts = ["/dev/shm* not there", "unknown free", "not writable, noexec", "no cgroups", "2.7.1 (CUDA 12.6)"]
    assert all(part in text for part in [*parts, "none (g++ and Python.h are both needed)"]), text


def test_brackets_in_a_name_are_not_markup() -> None:
    odd = replace(machine("laptop"), name="[bold]box[/bold]")
    assert "facts of [bold]box[/bold]" in print_table(odd)
