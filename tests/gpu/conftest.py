"""Tests on a real GPU. Each trains in a process of its own, since this one has hidden the GPUs from all other tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.hardware import nvidia
from tests.conftest import SHOWN


def environment() -> dict[str, str]:
    """The environment of a process that may use the GPU."""
    rest = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    shown = os.environ[SHOWN]
    return rest if shown == "all" else rest | {"CUDA_VISIBLE_DEVICES": shown}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where there is no GPU."""
    gpus, trouble = nvidia.read_gpus(Path("/"), environment(), "host")
    here = Path(__file__).parent
    for item in items:
        if not gpus and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {trouble or 'none was found'}"))
