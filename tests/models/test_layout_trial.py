"""A network that fails in channels_last layout trains in the other one; which, is known before the plan is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drivetrain.errors import SpecError
from drivetrain.models import forward, inspection, strided_convolution
from drivetrain.models.networks import cnn
from drivetrain.plan import plan
from tests import tiny
from tests.messages import says


class FlatteningNetwork(nn.Module):
    """Two convolutions and one output layer, with some way between them."""

    def __init__(self, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)
        self.last, self.flatten = nn.Linear(64, 3), flatten

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.flatten(self.second(torch.relu(self.norm(self.first(inputs))))))
        return result


def flatten_by_view(x: Tensor) -> Tensor:
    return x.view(x.size(0), -1)


@pytest.mark.parametrize(
    ("flatten", "says"),
    [(flatten_by_view, "view size is not compatible"), (lambda x: x.flatten(1), ""), (lambda x: 1 / 0, "")],
)
def test_what_fails_in_one_layout_alone_is_found(flatten: Callable[[Tensor], Tensor], says: str) -> None:
    network = FlatteningNetwork(flatten)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(1)
    expected_draw = torch.rand(1)
    torch.manual_seed(1)
    obstacle = inspection.find_layout_obstacle(network, tiny.dataset())
    assert says in obstacle
    assert bool(obstacle) is bool(says)
    assert torch.equal(torch.rand(1), expected_draw)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.grad is None and p.is_contiguous() for p in network.parameters())


def test_a_backward_pass_counts_too() -> None:

    class Strict(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.saved_tensors[0].view(-1).sign().view(gradient.shape)

    def strict(x: Tensor) -> Tensor:
        result: Tensor = Strict.apply(x)
        return result.flatten(1)

    assert "view size" in inspection.find_layout_obstacle(FlatteningNetwork(strict), tiny.dataset())


def test_layers_that_are_not_the_users_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_try_layout", lambda *_: "tried")
    assert inspection.find_layout_obstacle(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), tiny.dataset()) == ""
    assert inspection.find_layout_obstacle(tiny.build(tiny.job(), tiny.dataset()).module, tiny.dataset()) == ""


def test_the_plan_takes_the_layout_that_works() -> None:
    facts = inspection.inspect_workload(tiny.dataset(), FlatteningNetwork(flatten_by_view))
    decision = next(d for d in plan.resolve(tiny.job(), tiny.machine(), facts).decisions if d.name == "channels_last")
    assert decision.value is False
    assert says(decision.reason, "fails-layout-usual-runtimeerror")
    with pytest.raises(SpecError, match=r"optimize\.channels_last.*\n.*x\.flatten"):
        plan.resolve(tiny.job(optimize="channels_last: true"), tiny.machine(), facts)
    any_layout_facts = inspection.inspect_workload(tiny.dataset(), FlatteningNetwork(lambda x: x.flatten(1)))
    assert plan.resolve(tiny.job(), tiny.machine(), any_layout_facts).value("channels_last") is True


def test_narrow_strided_convolutions_are_tried_in_the_safe_way() -> None:
    """Their usual kernel writes past the end of its memory in this layout: the process would die in the trial."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.strided, self.last, self.seen = nn.Conv2d(1, 3, 1, stride=2), nn.Linear(48, 3), list[str]()

        def forward(self, inputs: Tensor) -> Tensor:
            self.seen += strided_convolution.list_rewritten(self)
            result: Tensor = self.last(self.strided(inputs).flatten(1))
            return result

    network = Narrow()
    assert inspection.find_layout_obstacle(network, tiny.dataset()) == ""
    assert set(network.seen) == {"strided"}
    assert strided_convolution.list_rewritten(network) == []
    strided_convolution.rewrite(network)
    assert inspection.find_layout_obstacle(network, tiny.dataset()) == ""
    assert strided_convolution.list_rewritten(network) == ["strided"]


@pytest.mark.parametrize("name", ["resnet18", "small-cnn"])
def test_layers_of_this_package_are_not_those_of_a_user(name: str) -> None:
    assert not forward.has_own_layers(cnn.build(name, channels=1, classes=3, image_size=8))
    assert forward.has_own_layers(FlatteningNetwork(flatten_by_view))
