"""Networks that crashed: each trains, or is refused before the first step in three parts."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drivetrain.errors import SpecError
from drivetrain.job.model import Freeze
from drivetrain.models import dry_run, forward
from drivetrain.models.build import BuiltModel
from drivetrain.training.evaluation.validation import evaluate
from tests import tiny


class Network(nn.Module):
    """One linear layer over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(inputs.flatten(1))
        return result


class Extra(Network):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


class KeepingNetwork(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        self.before = super().forward(inputs)
        return self.before


class GradientNetwork(Network):
    """Asks for a gradient in its forward pass, also when it is evaluated."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            x = inputs.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.last(x.flatten(1)).square().sum(), x, create_graph=True)
        return super().forward(inputs) + 0.01 * gradient.flatten(1)[:, :3]


def with_complex() -> nn.Module:
    network = Network()
    network.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return network


def with_old_norm(norm: Any) -> nn.Module:
    network = Network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        norm(network.last)
    return network


def with_lock() -> nn.Module:
    network = Network()
    network.lock = threading.Lock()  # type: ignore[assignment]
    return network


def refuse(problem: str, possible: str, action: str) -> SpecError:
    return SpecError(problem, possible, action)


@pytest.mark.parametrize(
    ("make", "problem", "action"),
    [
        (lambda: with_old_norm(nn.utils.weight_norm), "last.weight is kept by torch.nn.utils.weight_norm", "parametrizations.weight_norm"),
        (lambda: with_old_norm(nn.utils.spectral_norm), "last.weight is kept by torch.nn.utils.spectral_norm", "parametrizations.spectral_norm"),
        (lambda: Extra({"n": 1}), "get_extra_state() of itself gives a dict", "register_buffer"),
        (lambda: nn.Sequential(Extra({"n": 1})), "get_extra_state() of 0 gives a dict", "register_buffer"),
        (with_complex, "phase has complex numbers", "torch.view_as_complex"),
        (lambda: torch.jit.script(Network()), "of torch.jit", "return the module itself"),
        (KeepingNetwork, "before is a tensor of the last forward pass", "VALUE.detach()"),
        (with_lock, "cannot be copied: copy.deepcopy raised TypeError", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_copied_or_stored_is_refused(make: Any, problem: str, action: str) -> None:
    with pytest.raises(SpecError) as caught:
        dry_run.check_network(make(), tiny.dataset(), "the model", refuse)
    assert problem in caught.value.given
    assert action in caught.value.action


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_old_norm(nn.utils.parametrizations.weight_norm),
        lambda: with_old_norm(nn.utils.parametrizations.spectral_norm),
        lambda: Extra(torch.tensor(3)),
        GradientNetwork,
    ],
)
def test_what_can_is_trained_and_evaluated(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make()
    dry_run.check_network(network, tiny.dataset(), "the model", refuse)
    monkeypatch.setattr(tiny, "build", lambda *_: BuiltModel(network, "own", {}, Freeze()))
    run = tiny.assemble_run(tmp_path, tiny.job())
    before = network.state_dict()["last.bias"].clone()
    tiny.losses(run, 2)
    assert not torch.equal(network.state_dict()["last.bias"], before)
    assert evaluate(run)[0]["validation/loss"] > 0
    network.eval()
    rows = list(
        forward.compute_outputs(network, [""], run.dataset.validation, run.dataset.prepare, torch.device("cpu"))
    )
    assert len(rows[0][1][""]) > 0
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
