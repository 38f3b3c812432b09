"""The optimizer: torch's own to the bit, and no import of torch's compiler on its account."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from drivetrain.training import fused_update, optimizer
from tests import tiny
from tests.training.optimizer_kinds import KINDS


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("spec", KINDS)
def test_same_bits_as_torch(spec: str, fused: bool) -> None:
    job = tiny.job(train=f"optimizer: {spec}")
    kind, settings = KINDS[spec]
    our_network, torch_network = nn.Linear(5, 3), nn.Linear(5, 3)
    torch_network.load_state_dict(our_network.state_dict())
    our_optimizer = optimizer.build(job, our_network)
    torch_optimizer = kind(
        optimizer.group_parameters(torch_network, job.train.optimizer.weight_decay), lr=0.01, **settings
    )
    assert type(our_optimizer).__name__ == kind.__name__
    assert isinstance(our_optimizer, kind)
    for group in (*our_optimizer.param_groups, *torch_optimizer.param_groups):
        group["fused"] = fused
    for _ in range(5):
        inputs = torch.randn(7, 5)
        for network, network_optimizer in ((our_network, our_optimizer), (torch_network, torch_optimizer)):
            network(inputs).square().sum().backward()
            network_optimizer.step()
            network_optimizer.zero_grad(set_to_none=True)
    for one, other in zip(our_network.parameters(), torch_network.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is None


def test_a_run_without_compilation_does_not_import_the_compiler(tmp_path: Path) -> None:
    """Importing it takes as long as importing torch."""
    code = (
        "import sys; from pathlib import Path; from tests import tiny; from drivetrain.training import train;"
        "train.train(tiny.assemble_run(Path(sys.argv[1]), tiny.job()));"
        "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_layers_whose_gradients_come_later_start_with_momentum_as_in_torch(dampening: float) -> None:
    """torch's fused kernel cannot: it failed in the first step after layers were unfrozen."""
    final_weights = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        spec = f"{{name: sgd, lr: 0.1, momentum: 0.9, dampening: {dampening}, weight_decay: 0.05}}"
        sgd = optimizer.build(
            tiny.job(train=f"optimizer: {spec}"), model, {name: 1.0 for name, _ in model.named_parameters()}
        )
        for group in sgd.param_groups:
            group["fused"], group["foreach"] = fused, False
        for step in range(5):
            model[0].requires_grad_(step >= 2)
            model(torch.randn(6, 3, generator=torch.manual_seed(step))).pow(2).sum().backward()
            fused_update.create_missing_momentum(sgd)
            sgd.step()
            sgd.zero_grad()
        final_weights.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(final_weights[1], final_weights[0])
