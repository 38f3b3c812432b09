"""Recomputed blocks: less memory at the peak; the same loss, gradient, dropout and buffers, bit for bit."""

from __future__ import annotations

import copy
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.errors import SpecError
from drivetrain.hardware import facts
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection
from drivetrain.models import recompute as blocks
from drivetrain.models.networks import cnn, cnn_lstm, mlp, text_encoder
from drivetrain.plan import plan
from drivetrain.training import effective_settings
from drivetrain.tuning import variants
from tests import tiny
from tests.messages import saying
from tests.models.recomputed_networks import ENCODER, build_encoder, build_resnet
from tests.paths import MACHINES

torch.set_num_threads(1)


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that are made in it and still live, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in outputs if isinstance(outputs, tuple | list) else (outputs,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.known:
                self._count(tensor.untyped_storage())
        return outputs

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def run_pass(network: nn.Module, inputs: tuple[Tensor, ...], recompute: bool) -> dict[str, list[Tensor]]:
    """Run a forward and a backward pass in a copy of the network with fixed random numbers; return its state."""
    copied_network = copy.deepcopy(network).train()
    if recompute:
        blocks.recompute(copied_network)
        copied_network = copy.deepcopy(copied_network)
    torch.manual_seed(1)
    loss = torch.zeros(())
    for part in range(2):
        share = copied_network(*(x[2 * part : 2 * part + 2] for x in inputs)).logsumexp(dim=1).mean()
        share.backward()
        loss = loss + share.detach()
    return {
        "loss": [loss],
        "gradient": [p.grad.clone() for p in copied_network.parameters() if p.grad is not None],
        "buffers": [b.clone() for b in copied_network.buffers()],
        "draws": [torch.random.get_rng_state()],
    }


@pytest.mark.parametrize("make", [build_encoder, build_resnet])
def test_the_same_bits(make: Any) -> None:
    network, inputs = make()
    plain, saving = (run_pass(network, inputs, recompute) for recompute in (False, True))
    for name, values in plain.items():
        assert len(values) == len(saving[name])
        assert all(map(torch.equal, values, saving[name])), name


def test_buffers_move_once() -> None:
    network, inputs = build_resnet()
    plain, saving = (run_pass(network, inputs, recompute)["buffers"] for recompute in (False, True))
    counts = [b for b in saving if b.dtype == torch.int64]
    assert counts
    assert all(int(count) == 2 for count in counts)
    assert all(map(torch.equal, plain, saving))


class DriftingBlock(nn.Module):
    """A block whose output depends on a buffer that every pass changes, as in a spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(1.5)
        return self.inner(x) * self.scale


def test_the_second_pass_sees_the_buffers_of_the_first() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(DriftingBlock() for _ in range(3)))
    assert len(blocks.find_repeated_blocks(network)) == 3
    x = torch.randn(4, 4)
    plain, saving = (run_pass(network, (x,), recompute) for recompute in (False, True))
    assert all(map(torch.equal, plain["gradient"], saving["gradient"]))
    assert all(map(torch.equal, plain["buffers"], saving["buffers"]))


class Greedy(nn.Module):
    """A block that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mul_(2))


def test_a_block_that_modifies_its_input_is_named() -> None:
    network = nn.Sequential(Greedy(), Greedy())
    blocks.recompute(network)
    with pytest.raises(SpecError, check=saying("gradient-checkpointing-greedy-modifies")):
        network(torch.randn(2, 4))


@pytest.mark.parametrize("make", [build_encoder, build_resnet])
def test_peak_memory_is_a_fifth_lower(make: Any) -> None:
    network, inputs = make()
    peaks = []
    for recompute in (False, True):
        copied_network = copy.deepcopy(network).train()
        if recompute:
            blocks.recompute(copied_network)
        copied_network(*inputs).sum().backward()  # gradients are there, so that activations are all that comes and goes
        with TensorMemory() as living:
            copied_network(*inputs).logsumexp(dim=1).mean().backward()
        peaks.append(living.peak)
    print(f"{make.__name__}: {peaks[0]:,} bytes of activations at the peak, {peaks[1]:,} recomputed")
    assert peaks[1] < 0.8 * peaks[0]


def test_evaluation_is_left_alone() -> None:
    network, inputs = build_resnet()
    network.eval()
    before = network(*inputs)
    names = list(network.state_dict())
    blocks.recompute(network)
    assert torch.equal(before, network(*inputs))
    with torch.inference_mode():
        assert torch.equal(before, network(*inputs))
    assert list(network.state_dict()) == names


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (build_encoder()[0], 4),
        (build_resnet()[0], 8),
        (cnn.build("resnet50", channels=1, classes=2, image_size=32, width=4), 16),
        (cnn.build("small-cnn", channels=1, classes=2, image_size=8, width=4), 0),
        (cnn_lstm.CnnLstm(channels=3, outputs=3, cnn_channels=(6, 6), lstm_hidden=7), 0),
        (mlp.Mlp(numbers=4, categories=[3], outputs=2, hidden=[9, 9], embedding=4, dropout=0.1), 0),
        (
            text_encoder.build(config={**ENCODER, "num_hidden_layers": 1}, outputs={"": 2}, pooling="cls", dropout=0.0),
            0,
        ),
    ],
)
def test_what_counts_as_a_block(network: nn.Module, count: int) -> None:
    assert len(blocks.find_repeated_blocks(network)) == count


RESNET = """
name: tiny
task: image-classification
data: {train: x}
model: {name: resnet18, width: 4, dropout: 0.3}
train: {epochs: 3, batch_size: 16, optimizer: {lr: 1e-3}}
"""


def test_a_run_trains_to_the_same_bits(tmp_path: Path) -> None:
    outcomes = []
    for value in (False, True):
        run = tiny.assemble_run(
            tmp_path,
            job_spec.check(parse(RESNET, "tiny.yaml")),
            settings={"gradient_checkpointing": value, "micro_batch": 8},
        )
        assert effective_settings.compare_with_plan(run)["gradient_checkpointing"]["seen"] is value
        outcomes.append((tiny.losses(run, 5), run.model.state_dict()))
    (losses, weights), (recomputed_losses, recomputed_weights) = outcomes
    assert losses == recomputed_losses
    assert all(torch.equal(value, recomputed_weights[name]) for name, value in weights.items())


def test_refused_without_blocks(tmp_path: Path) -> None:
    job = tiny.job(optimize="gradient_checkpointing: true")
    data = tiny.dataset()
    facts = inspection.inspect_workload(data, tiny.build(job, data).module)
    with pytest.raises(SpecError, check=saying("repeated-blocks-encoder-layers")):
        plan.resolve(job, tiny.machine(), facts)


def test_compile_is_refused_beside_it() -> None:
    machine = facts.read_hardware(MACHINES / "a100.json")
    job = tiny.job(optimize="gradient_checkpointing: true, compile: true")
    with pytest.raises(SpecError, check=saying("blocks-cannot-be-compiled")):
        plan.resolve(job, machine)
    alone = plan.resolve(tiny.job(optimize="gradient_checkpointing: true"), machine)
    assert (alone.value("compile"), alone.value("gradient_checkpointing")) == (False, True)


def test_a_comparison_without_dropout_still_recomputes() -> None:
    """Otherwise its peak memory would equal that of a network without recomputation."""
    network, _ = build_encoder()
    blocks.recompute(network)
    variants.turn_dropout_off(types.SimpleNamespace(model=network))  # type: ignore[arg-type]
    training = {type(module).__mro__[1].__name__ for module in network.modules() if module.training}
    assert training == {"RecomputedBlock"}
