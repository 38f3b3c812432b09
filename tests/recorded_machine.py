"""The machine that quick tests see: recorded facts, the same on every host. A test of the host itself has the marker `host`.

DRIVETRAIN_TESTS_MACHINE names another file of tests/machines; DRIVETRAIN_TESTS_FACTS a file that gets the names of the
tests that asked for facts, which `.ci/run` runs once more on another machine.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.paths import MACHINES

if TYPE_CHECKING:
    from drivetrain.hardware import facts

MACHINE, ASKED = "DRIVETRAIN_TESTS_MACHINE", "DRIVETRAIN_TESTS_FACTS"
DEFAULT = "codespace-2core-cgroup2"
"""A machine with AVX2 alone, as most have."""
CASES = 1
"""Cases of a test function that are run once more: all of them would take minutes."""
noted: dict[str, set[str]] = collections.defaultdict(set)


def sees_host(item: pytest.Item) -> bool:
    """Whether a test may read the machine that it runs on."""
    return any(map(item.get_closest_marker, ("host", "slow", "nightly")))


def _note(item: pytest.Item) -> None:
    """Note that a test asked for facts, for some cases of each test function."""
    name = item.nodeid.partition("[")[0]
    if (path := os.environ.get(ASKED)) and item.nodeid not in noted[name] and len(noted[name]) < CASES:
        noted[name].add(item.nodeid)
        with open(path, "a", encoding="utf-8") as file:
            group = item.get_closest_marker("xdist_group")  # xdist adds it to the name
            file.write(item.nodeid.removesuffix(f"@{group.args[0]}" if group else "") + "\n")


@functools.cache
def read_machine(name: str) -> facts.Hardware:
    from drivetrain.hardware import facts  # not before the variables of conftest.py are set

    return facts.read_hardware(MACHINES / f"{name}.json")


@contextlib.contextmanager
def replace_host(item: pytest.Item) -> Iterator[None]:
    """Replace what detection reads below the root of the file system; other roots are read as they are."""
    from drivetrain.hardware import detect

    marker = item.get_closest_marker("machine")
    recorded = read_machine(marker.args[0] if marker else os.environ.get(MACHINE, DEFAULT))

    def replace(name: str, value: object) -> None:
        read: Callable[..., object] = getattr(detect, name)

        def read_recorded(root: Path, *arguments: Any) -> object:
            if root != Path("/"):
                return read(root, *arguments)
            if name == "read_cpu":
                _note(item)
            return value

        patch.setattr(detect, name, read_recorded)

    with pytest.MonkeyPatch.context() as patch:
        replace("read_cpu", recorded.cpu)
        replace("read_memory", recorded.memory)
        replace("read_gpus", (recorded.gpus, recorded.gpu_trouble))
        replace("_detect_environment", recorded.place)
        yield
