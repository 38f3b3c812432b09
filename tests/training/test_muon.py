"""Muon: torch's own for matrices, AdamW for all other weights, and a refusal where there are no hidden matrices."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from drivetrain.errors import SpecError
from drivetrain.training import muon, optimizer
from tests import tiny
from tests.messages import says

MUON = "optimizer: {name: muon, lr: 0.01, weight_decay: 0.1}"


def build_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(9, 4), nn.Flatten(1), nn.Linear(8, 6), nn.ReLU(), nn.Unflatten(1, (6, 1, 1)),
        nn.Conv2d(6, 5, 1), nn.Flatten(1), nn.BatchNorm1d(5), nn.Linear(5, 3),
    )  # fmt: skip


def compute_gradients(network: nn.Module, seed: int) -> None:
    network.zero_grad()
    network(torch.randint(9, (7, 2), generator=torch.manual_seed(seed))).square().sum().backward()


def test_every_weight_is_updated_as_by_torch() -> None:
    network = build_network()
    hidden = {"2.weight", "5.weight"}
    copies = {name: nn.Parameter(p.detach().clone()) for name, p in network.named_parameters()}
    for name in hidden:
        copies[name] = nn.Parameter(copies[name].detach().flatten(1))
    other_parameters = [p for name, p in copies.items() if name not in hidden]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in other_parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in other_parameters if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    torch_muon = torch.optim.Muon(
        [copies[name] for name in hidden], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    ours = optimizer.build(tiny.job(train=MUON), network, output_sizes={3})
    for step in range(5):
        compute_gradients(network, step)
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            copies[name].grad = parameter.grad.clone().view_as(copies[name])
        for one in (ours, adamw, torch_muon):
            one.step()
    for name, parameter in network.named_parameters():
        # torch's Muon iterates in bf16.
        tolerance = 1e-3 if name in hidden else 1e-6
        torch.testing.assert_close(parameter.flatten(), copies[name].flatten(), rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3)])
def test_singular_values_move_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.manual_seed(1))
    values = torch.linalg.svdvals(muon.orthogonalize(matrix))
    assert torch.all((values > 0.6) & (values < 1.3)), values


def test_a_restored_state_continues_with_the_same_bits() -> None:
    networks = build_network(), build_network()
    optimizers = [optimizer.build(tiny.job(train=MUON), network, output_sizes={3}) for network in networks]
    for step in range(3):
        compute_gradients(networks[0], step)
        optimizers[0].step()
    networks[1].load_state_dict(networks[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for step in range(3, 6):
        for network, one in zip(networks, optimizers, strict=True):
            compute_gradients(network, step)
            one.step()
    for parameter, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_a_run_learns_and_does_not_claim_a_fused_kernel(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(train=MUON, epochs=8))
    losses = tiny.losses(run, 24)
    assert losses[-1] < 0.5 * losses[0]
    assert run.plan.value("fused_optimizer") is False


def test_a_network_without_hidden_matrices_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        optimizer.build(tiny.job(train=MUON), nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), output_sizes={3})
    assert says(str(caught.value), "muon-without-matrices")
    assert caught.value.problems[0].key == "train.optimizer"
