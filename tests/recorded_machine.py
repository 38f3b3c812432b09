"""The machine that quick tests see: recorded facts, the same on every host. A test of the host itself has the marker `host`.

DRIVETRAIN_TESTS_MACHINE names another file of tests/machines for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.paths import MACHINES

if TYPE_CHECKING:
    from drivetrain.hardware import facts

MACHINE = "DRIVETRAIN_TESTS_MACHINE"
MACHINE_NAMES = ("codespace-2core-cgroup2", "vm-2core-cgroup1")
"""A machine with AVX2 alone, as most have, and one with AMX, which computes in bf16."""


def sees_host(item: pytest.Item) -> bool:
    """Whether a test may read the machine that it runs on."""
    return any(map(item.get_closest_marker, ("host", "slow", "nightly")))


def _choose_machine(item: pytest.Item) -> str:
    """Name the machine of a test, always the same one: the second for the first case of every other test function."""
    marker = item.get_closest_marker("machine")
    if marker is not None:
        return str(marker.args[0])
    case = getattr(item, "callspec", None)
    is_first = case is None or not any(case.indices.values())
    function = item.nodeid.partition("[")[0].partition("@")[0]  # xdist adds the name of its group
    return os.environ.get(MACHINE, MACHINE_NAMES[is_first and zlib.crc32(function.encode()) % 2])


@functools.cache
def read_machine(name: str) -> facts.Hardware:
    from drivetrain.hardware import facts  # not before the variables of conftest.py are set

    return facts.read_hardware(MACHINES / f"{name}.json")


@contextlib.contextmanager
def replace_host(item: pytest.Item) -> Iterator[None]:
    """Replace what detection reads below the root of the file system; other roots are read as they are."""
    from drivetrain.hardware import detect

    recorded = read_machine(_choose_machine(item))

    def replace(name: str, value: object) -> None:
        read: Callable[..., object] = getattr(detect, name)

        def read_recorded(root: Path, *arguments: Any) -> object:
            return value if root == Path("/") else read(root, *arguments)

        patch.setattr(detect, name, read_recorded)

    with pytest.MonkeyPatch.context() as patch:
        replace("read_cpu", recorded.cpu)
        replace("read_memory", recorded.memory)
        replace("read_gpus", (recorded.gpus, recorded.gpu_trouble))
        replace("_detect_environment", recorded.place)
        yield
