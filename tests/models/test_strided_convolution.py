"""Strided 1x1 convolutions of few channels: right numbers and a whole heap, whatever torch's kernels do there."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import drivetrain
from drivetrain.models import strided_convolution
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from tests import heap
from tests.convolutions import answers, cases
from tests.messages import says

WORST = [
    *cases(inputs=[3, 12], size=[16, 64]),
    *cases(kind=["ConvTranspose2d"], outputs=[3], size=[32]),
]
"""Those that write past a workspace on AVX2 (the first ones) or AVX-512 (the larger ones)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cap", "threads"),
    [
        ("AVX2", 1),
        pytest.param("AVX512_CORE_BF16", 2, marks=pytest.mark.nightly),
        pytest.param("AVX2", 2, marks=pytest.mark.nightly),
        pytest.param("AVX512_CORE_BF16", 1, marks=pytest.mark.nightly),
    ],
)
def test_correct_and_within_bounds(cap: str, threads: int) -> None:
    heap.require_checker()
    assert answers(WORST, cap, threads) == {}


def test_the_same_numbers() -> None:
    network = nn.Sequential(
        nn.Conv2d(2, 4, 1, (1, 3)),
        nn.ConvTranspose2d(4, 5, 1, 2, output_padding=1, bias=False),
        nn.ConvTranspose2d(5, 3, 1, 2, output_padding=1),
    ).double()
    changed = copy.deepcopy(network)
    strided_convolution.rewrite(changed)
    assert strided_convolution.list_rewritten(changed) == ["0", "1", "2"]
    x = torch.randn(2, 2, 5, 7).double()
    assert torch.allclose(changed(x), network(x), atol=1e-12)
    assert torch.allclose(changed[0](input=x), network[0](x), atol=1e-12)
    y = torch.randn(2, 4, 5, 7).double()
    assert torch.equal(changed[1](y, output_size=[9, 13]), network[1](y, output_size=[9, 13]))
    for one in (network, changed):
        one(x).square().sum().backward()
    for p, q in zip(network.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(16, 8, 1, 2),
        nn.Conv2d(4, 8, 3, 2),
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(4, 8, 1, 2, padding=1),
        nn.Conv2d(4, 8, 1, 2, groups=2),
        nn.Conv1d(4, 8, 1, 2),
        nn.ConvTranspose2d(4, 8, 1, 2),
        nn.Conv2d(4, 8, 3, padding="same"),
    ],
)
def test_convolutions_that_torch_computes_correctly_stay(module: nn.Module) -> None:
    strided_convolution.rewrite(module)
    assert strided_convolution.list_rewritten(module) == []


class ByItself(nn.Module):
    """A network that takes weight and settings of its convolution and computes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.conv.weight, self.conv.bias, self.conv.stride)


def test_attributes_that_a_user_network_reads_stay() -> None:
    network, x = ByItself(), torch.randn(1, 4, 8, 8)
    before = network(x)
    strided_convolution.rewrite(network)
    assert network.conv.stride == (2, 2)
    assert torch.equal(network(x), before)


@pytest.mark.slow
def test_compiled_and_in_bf16() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.ConvTranspose2d(4, 3, 1, 2, output_padding=1))
    x = torch.randn(1, 3, 6, 6)
    before = network(x)
    strided_convolution.rewrite(network)
    assert torch.allclose(torch.compile(network)(x), before, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x).dtype == torch.bfloat16


def test_as_before() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.ConvTranspose2d(4, 3, 1, 2, output_padding=1))
    attributes_before = [set(vars(module)) for module in network]
    x = torch.randn(1, 3, 6, 6)
    expected = network(x)
    strided_convolution.rewrite(network)
    strided_convolution.rewrite(network)
    copied = copy.deepcopy(network)
    assert copied[1].forward.args[0] is copied[1]  # type: ignore[attr-defined]
    strided_convolution.restore_layers(network)
    assert strided_convolution.list_rewritten(network) == []
    assert [set(vars(module)) for module in network] == attributes_before
    assert network[0].stride == network[1].stride == (2, 2)
    assert torch.equal(network(x), expected)
    assert torch.allclose(copied(x), expected, atol=1e-6)


JOB = """
name: narrow
task: image-classification
data: {train: images.npz, validation: 0.25}
model: {name: resnet18, width: 4}
train: {epochs: 2, batch_size: 8}
optimize: {cpu_threads: 1, channels_last: true, measure: off}
"""


def test_a_narrow_resnet_trains_and_notes_the_rewritten_convolutions(tmp_path: Path) -> None:
    heap.require_checker()
    labels = np.arange(48) % 3
    images = np.random.default_rng(0).integers(0, 256, (48, 16, 16)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    (tmp_path / "job.yaml").write_text(JOB)
    command = ["drivetrain", "train", str(tmp_path / "job.yaml"), "--runs", str(tmp_path / "runs")]
    process = heap.run_module(command, heap.environment("AVX2"))
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    assert says(process.stdout, "convolution-stride-over-every", "stages.1.0.shortcut.0", "stages.2.0.shortcut.0", 1)
    events = (tmp_path / "runs" / "narrow-001" / "events.jsonl").read_text()
    assert "uxlfoundation/oneDNN#6035" in events


def test_a_programs_network_is_returned_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunLifecycle, "report", lambda run, output: None)
    network = nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.Flatten(), nn.Linear(64, 2))
    data = torch.randn(32, 3, 8, 8), torch.arange(32) % 2
    drivetrain.train(network, data, data, epochs=1, batch_size=8, runs=tmp_path, optimize={"measure": "off"})
    assert "convolution" in (tmp_path / "library-001" / "events.jsonl").read_text()
    assert network[0].stride == (2, 2)
    assert strided_convolution.list_rewritten(network) == []
