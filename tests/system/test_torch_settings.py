"""Torch's settings of the whole process: set in one place at every assembly, read back, and given back to a caller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.backends import cuda, cudnn

import drivetrain
from drivetrain.library import host_process
from drivetrain.models import forward
from drivetrain.optimizations import precision
from drivetrain.system import torch_settings
from drivetrain.training import effective_settings
from drivetrain.training.step import Step
from tests import tiny

GPU_RUN: Any = SimpleNamespace(
    device=torch.device("cuda"),
    step=SimpleNamespace(forward=SimpleNamespace(dtype=None), scale_losses=lambda scaling: None),
    job=tiny.job(),
)
"""Enough of a run on a GPU for a precision to be applied to it, which sets switches that any build of torch has."""


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with torch_settings.keep_switches():
        yield


def spoil() -> None:
    """What a program may have set before it calls us: everything other than a run begins with."""
    torch.set_float32_matmul_precision("medium")
    cudnn.allow_tf32 = True
    cudnn.benchmark = cudnn.deterministic = True
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cuda.matmul.allow_fp16_accumulation = True
    cuda.enable_flash_sdp(False)
    cuda.enable_math_sdp(False)
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.set_flush_denormal(True)
    torch.set_deterministic_debug_mode("error")


def test_fp32_is_fp32_after_a_run_with_tf32(tmp_path: Path) -> None:
    precision.apply(GPU_RUN, "tf32")
    assert precision.effective(GPU_RUN) == "tf32"
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    assert precision.effective(GPU_RUN) == precision.effective(tiny_run) == "fp32"
    assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cuda.matmul.allow_tf32) == ("highest", False, False)


def test_fp32_is_fp32_where_torch_comes_with_tf32_for_convolutions_and_recurrent_layers(tmp_path: Path) -> None:
    cudnn.allow_tf32 = True  # as torch comes
    tiny.assemble_run(tmp_path, tiny.job())
    assert precision.effective(GPU_RUN) == "fp32"
    assert not cudnn.allow_tf32


def test_bf16_lets_every_fp32_kernel_use_tf32_and_older_switches_can_still_be_read(tmp_path: Path) -> None:
    tiny.assemble_run(tmp_path, tiny.job())
    precision.apply(GPU_RUN, "bf16")
    GPU_RUN.step.forward.dtype = None  # what is left is for kernels of fp32
    assert precision.effective(GPU_RUN) == "tf32"
    # The compiler reads these, and torch refuses to read them where newer ones say otherwise.
    assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cuda.matmul.allow_tf32) == ("high", True, True)


def test_partial_tf32_is_detected(tmp_path: Path) -> None:
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    cudnn.allow_tf32 = True  # a network's own code
    assert effective_settings.compare_with_plan(tiny_run)["precision"] | {"cause": None} == {
        "asked": "fp32",
        "seen": "mixed",
        "same": False,
        "cause": None,
    }


@pytest.mark.skipif(not torch_settings.HAS_SETTER, reason="this torch has no precision for kernels of a CPU")
def test_a_short_format_for_cpu_kernels_is_detected_and_restored(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    assert precision.effective(GPU_RUN) == "mixed"
    assert precision.effective(tiny.assemble_run(tmp_path, tiny.job())) == "fp32"


def test_every_switch_is_set_at_every_assembly(tmp_path: Path) -> None:
    tiny.assemble_run(tmp_path, tiny.job())
    first = torch_settings.read_switches()
    spoil()
    changed_switches = {name for name, value in torch_settings.read_switches().items() if value != first[name]}
    assert len(changed_switches) >= 12
    tiny.assemble_run(tmp_path, tiny.job())
    assert torch_settings.read_switches() == first


def test_a_host_program_gets_its_torch_settings_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil()
    torch.set_default_dtype(torch.float64)
    switches_before, switches_during = torch_settings.read_switches(), list[dict[str, object]]()

    def record_switches(self: Step, *arguments: object) -> object:
        switches_during.append(torch_settings.read_switches())
        return compute_gradients(self, *arguments)  # type: ignore[arg-type]

    compute_gradients = Step.compute_gradients
    monkeypatch.setattr(Step, "compute_gradients", record_switches)
    inputs, classes = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32), np.arange(16) % 2
    network = nn.Linear(4, 2, dtype=torch.float32)
    drivetrain.train(network, (inputs, classes), (inputs, classes), runs=tmp_path, epochs=1, batch_size=8)
    assert torch_settings.read_switches() == switches_before
    assert switches_during[0]["float32_matmul_precision"] == "highest"
    assert switches_during[0]["default_dtype"] is torch.float32


@pytest.mark.skipif(not torch_settings.HAS_SETTER, reason="this torch has one switch for each")
def test_a_host_program_gets_newer_torch_switches_back() -> None:
    cuda.matmul.fp32_precision = "tf32"  # its older switch now says otherwise, and torch refuses to read that
    switches_before = torch_settings.read_switches()
    assert "float32_matmul_precision" not in switches_before
    with host_process.restore_state():
        torch_settings.reset_switches()
        assert torch_settings.read_tf32() is False
    assert {
        name: value for name, value in torch_settings.read_switches().items() if name in switches_before
    } == switches_before


def test_prediction_computes_in_fp32(tmp_path: Path) -> None:
    data = tiny.dataset()
    cudnn.allow_tf32 = True
    tf32_states = list[bool | None]()

    class Watching(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            tf32_states.append(torch_settings.read_tf32())
            return images.flatten(1)[:, :3]

    list(forward.compute_outputs(Watching(), data.heads, data.validation, data.prepare, torch.device("cpu")))
    assert tf32_states == [False]
    assert cudnn.allow_tf32


def test_what_torch_is_set_to_is_in_the_record(tmp_path: Path) -> None:
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    effective_settings.record(tiny_run, lambda line: None)
    settings_text = json.loads((tmp_path / "plan.json").read_text())["seen"]["libraries"]["torch settings"]
    assert {"float32_matmul_precision: highest", "cudnn allow_tf32: False"} <= set(settings_text.split("; "))


def test_what_compiling_sets_is_taken_back() -> None:
    """In a process that is not ours the compiler keeps its own way of drawing and of choosing kernels."""
    from torch._inductor import config

    switches_before = config.fallback_random, config.deterministic
    eager = torch.are_deterministic_algorithms_enabled()
    with torch_settings.keep_switches():
        torch_settings.configure_compiler(torch.device("cpu"), deterministic=True)
        assert (config.fallback_random, config.deterministic) == (True, True)
        torch_settings.reset_switches()  # another run begins, as the tuner's do: what is compiled already stays as it is
        assert (config.fallback_random, config.deterministic) == (True, True)
    assert (config.fallback_random, config.deterministic) == switches_before
    assert torch.are_deterministic_algorithms_enabled() == eager
