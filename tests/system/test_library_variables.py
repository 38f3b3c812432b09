"""Variables that a person has set are kept beside those of a plan, and win."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drivetrain.optimizations import allocator_segments
from drivetrain.system import child_process, library_variables
from drivetrain.training import effective_settings

OURS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, OURS),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"},
            {
                "PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True",
                "PYTORCH_CUDA_ALLOC_CONF": "b:2,expandable_segments:True",
            },
        ),
    ],
)
def test_settings_of_the_allocator_are_joined(variables: dict[str, str], expected: dict[str, str]) -> None:
    assert library_variables.merge_variables(variables, OURS) == expected


def test_a_workspace_that_gives_the_same_bits_stays() -> None:
    ours = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert library_variables.merge_variables({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, ours) == {}
    assert library_variables.merge_variables({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, ours) == ours


def test_a_child_process_inherits_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("LD_PRELOAD", "theirs.so")
    environment = child_process.build_environment(OURS | {"LD_PRELOAD": "ours.so"})
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert environment["LD_PRELOAD"] == "ours.so:theirs.so"


def test_settings_overridden_by_the_user_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert allocator_segments.effective(on_gpu) is True
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert allocator_segments.effective(on_gpu) is False
    assert "PYTORCH_ALLOC_CONF" in effective_settings.LIKELY_CAUSES["allocator_segments"]


def test_a_child_tells_the_hub_nothing_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    script = (
        "from huggingface_hub import constants as c; print(c.HF_HUB_DISABLE_TELEMETRY, c.HF_HUB_DISABLE_IMPLICIT_TOKEN)"
    )
    child = [sys.executable, "-c", script]
    environment = child_process.build_environment({})
    assert subprocess.check_output(child, env=environment, text=True) == "True True\n"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
    assert subprocess.check_output(child, env=child_process.build_environment({}), text=True) == "True False\n"
