"""Tests on a real GPU. Each trains in a process of its own, since this one has hidden the GPUs from all other tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.hardware import nvidia
from tests.conftest import SHOWN


def environment() -> dict[str, str]:
    """The environment of a process that may use the GPU."""
    other_variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    visible_gpus = os.environ[SHOWN]
    return other_variables if visible_gpus == "all" else other_variables | {"CUDA_VISIBLE_DEVICES": visible_gpus}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where there is no GPU."""
    gpus, problem = nvidia.read_gpus(Path("/"), environment(), "host")
    folder = Path(__file__).parent
    for item in items:
        if not gpus and item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {problem or 'none was found'}"))
