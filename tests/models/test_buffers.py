"""Buffers: put back after a step that came to nothing, however a network changes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch, Head
from drivetrain.errors import SpecError
from drivetrain.models import saved_model
from drivetrain.models.buffers import Buffers, unshare
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.training.losses import build_objective
from drivetrain.training.step import Step
from drivetrain.training.updater import Updater
from tests.axes import each_once
from tests.own_job import MODEL, write_job
from tests.supervisor.custom_run import train_job

torch.set_num_threads(1)


class Net(nn.Module):
    """Keeps the mean of its inputs in one of several ways."""

    def __init__(self, keep: Callable[[Any, Tensor], None], value: Tensor | None, *, persistent: bool = False) -> None:
        super().__init__()
        self.last, self.keep = nn.Linear(4, 2), keep
        self.register_buffer("kept", value, persistent=persistent)

    def forward(self, x: Tensor) -> Any:
        self.keep(self, x.detach().mean(dim=0))
        return self.last(x) + self.kept.sum() * 0


def in_place(net: Any, mean: Tensor) -> None:
    net.kept.mul_(0.9).add_(mean * 0.1)


def assign(net: Any, mean: Tensor) -> None:
    net.kept = net.kept * 0.9 + mean * 0.1


def expand(net: Any, mean: Tensor) -> None:
    net.kept = (net.kept[:1] + mean[:1]).expand(4)


def at_first(net: Any, mean: Tensor) -> None:
    net.kept = mean if net.kept is None else net.kept * 0.9 + mean * 0.1


def longer(net: Any, mean: Tensor) -> None:
    net.kept = torch.cat([net.kept, mean])


def resize(net: Any, mean: Tensor) -> None:
    net.kept.resize_(len(net.kept) + len(mean))[-len(mean) :] = mean


def register(net: Any, mean: Tensor) -> None:
    name = f"kept_{len(net._buffers)}"
    net.register_buffer(name, mean, persistent=False)
    net.kept = net.kept * 0.9 + net.get_buffer(name) * 0.1


def share(net: Any, mean: Tensor) -> None:
    net.twin = net.kept = net.kept * 0.9 + mean * 0.1


def make_step(net: nn.Module) -> Step:
    head = {"": Head("", classes=("a", "b"))}
    objective = build_objective(None, head, {"": torch.zeros(1).long()}, "none")
    updater = Updater(net, torch.optim.SGD(net.parameters(), lr=0.1), None)
    return Step(ForwardPass(net, objective, torch.device("cpu")), updater)


def batch(seed: int, value: float | None = None) -> Batch:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    if value is not None:
        x[3, 2] = value
    return Batch(torch.arange(8).numpy(), (x,), {"": torch.arange(8) % 2})


def buffers(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.named_buffers(remove_duplicate=False)}


WAYS = [in_place, assign, at_first, longer, resize, register, share]


def start_network(way: Callable[[Any, Tensor], None]) -> Net:
    torch.manual_seed(0)
    net = Net(way, None if way is at_first else torch.zeros(4))
    if way is share:
        net.register_buffer("twin", net.kept, persistent=False)  # type: ignore[arg-type]
    return net


@pytest.mark.parametrize(("good", "way"), each_once([0, 1, 3], WAYS))
def test_a_skipped_step_leaves_no_trace(way: Callable[[Any, Tensor], None], good: int) -> None:
    net, other_net = start_network(way), start_network(way)
    step, other_step = make_step(net), make_step(other_net)
    for number in range(good):
        assert step(batch(number)).finite
        other_step(batch(number))
    before = buffers(net)
    assert not step(batch(9, float("nan"))).finite
    assert buffers(net).keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in buffers(net).items())
    assert step(batch(10)).read() == other_step(batch(10)).read()
    assert all(torch.equal(value, buffers(other_net)[name]) for name, value in buffers(net).items())


@pytest.mark.parametrize(("error", "way"), each_once([RuntimeError("CUDA out of memory"), KeyboardInterrupt()], WAYS))
def test_an_interrupted_step_leaves_no_trace(way: Callable[[Any, Tensor], None], error: BaseException) -> None:
    """The second half of a network fails the step; with micro-batches, after the first one is done."""
    net, other_net = start_network(way), start_network(way)
    step, other_step = make_step(net), make_step(other_net)
    step.report = lambda kind, text: None
    step.use_micro_batch(4)
    other_step.use_micro_batch(4)
    calls: list[int] = []

    def fail(module: nn.Module, inputs: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise error

    handle = net.last.register_forward_pre_hook(fail)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            step(batch(0))
        handle.remove()
        step(batch(0))
    else:
        step(batch(0))
        other_step.use_micro_batch(2)
    other_step(batch(0))
    assert buffers(net).keys() == buffers(other_net).keys()
    assert all(torch.equal(value, buffers(other_net)[name]) for name, value in buffers(net).items())


def test_the_same_tensors_come_back() -> None:
    """Other holders of a buffer, such as a compiled kernel, still see it."""
    net = start_network(assign)
    first_buffer, tracked = net.kept, Buffers(net)
    with tracked.keep_unchanged():
        net(batch(0).inputs[0])
        assert net.kept is not first_buffer
    assert net.kept is first_buffer
    assert torch.equal(first_buffer, torch.zeros(4))  # type: ignore[arg-type]


def test_a_buffer_of_a_checkpoint_keeps_its_shape() -> None:
    net = Net(longer, torch.zeros(4), persistent=True)
    step = make_step(net)
    step(batch(0))
    with pytest.raises(
        SpecError, match=r"the buffer kept of the network was of shape \(4,\) .* and is of shape \(8,\) now"
    ):
        step(batch(1))


KEPT = (
    MODEL.replace("super().__init__()", "super().__init__()\n        self.register_buffer('mean', torch.zeros(4))")
    .replace("return self.last", "self.mean = self.mean * 0.9 + x.detach().mean(dim=0) * 0.1\n        return self.last")
    .replace("from torch import nn", "import torch\nfrom torch import nn")
)
ONCE_NAN = """
import torch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        return (x * float("nan") if i == 40 else x), i % 2

def load():
    return Points(), torch.utils.data.Subset(Points(), range(16))
"""


def test_a_run_with_a_bad_sample_and_a_buffer_that_is_assigned(tmp_path: Path) -> None:
    """An evaluation changes nothing either: no training could continue with tensors of inference mode."""
    path = write_job(tmp_path, {"my_model.py": KEPT, "my_data.py": ONCE_NAN}, train="ema: 0.5")
    run_folder = train_job(path)
    events = (run_folder / "events.jsonl").read_text()
    assert events.count("skipped: loss nan") == 2  # once in each epoch
    assert "back to" not in events


def test_a_buffer_whose_elements_share_memory() -> None:
    net = Net(expand, torch.ones(1).expand(4), persistent=True)
    unshare(net)
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
    tracked = Buffers(net)
    for _ in range(2):
        tracked.remember()
        before = net.kept.clone()
        net(torch.full((2, 4), 3.0))
        tracked.rewind()
        assert torch.equal(net.kept, before)  # type: ignore[arg-type]
        net(torch.full((2, 4), 3.0))


def test_a_user_network_with_a_buffer_whose_elements_share_memory(tmp_path: Path) -> None:
    mask = "self.register_buffer('mask', torch.ones(1).expand(4))"
    code = MODEL.replace("self.last =", f"{mask}\n        self.last =").replace(
        "from torch", "import torch\nfrom torch"
    )
    run_folder = train_job(write_job(tmp_path, {"my_model.py": code}))
    assert saved_model.load(run_folder / "model").network.get_buffer("mask").tolist() == [1.0] * 4


def test_each_copy_is_of_one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch copies a list of mixed dtypes tensor by tensor: 159 GPU kernels a step for ResNet-50."""
    real, dtypes = torch._foreach_copy_, list[set[torch.dtype]]()

    def seen(targets: list[Tensor], sources: list[Tensor]) -> None:
        dtypes.append({tensor.dtype for tensor in [*targets, *sources]})
        real(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", seen)
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    buffers = Buffers(network)
    buffers.remember()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network(torch.randn(5, 3))
    buffers.rewind()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    buffers.remember()
    assert dtypes == [{torch.float32}, {torch.int64}] * 2
