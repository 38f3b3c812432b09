"""Divides weights, gradients and optimizer state of a network among the processes: torch's FSDP2 (`fully_shard`).

Each repeated block, and what is outside of them, is gathered when it computes and divided again afterwards (S.
Rajbhandari et al. 2020, ZeRO, stage 3). Gradients are summed on the way back, not averaged, since a loss is already
divided by the weight of the whole batch.
"""

from __future__ import annotations

import torch
from torch import nn

from drivetrain.distributed.sharded_tensor import is_sharded
from drivetrain.models import recompute


def shard(network: nn.Module, device: torch.device, count: int) -> None:
    """Divide a network in place; its parameters become other objects of the same names.

    Parameters without a dimension stay whole, as `fully_shard` cannot divide them.

    Args:
        network: alike in all processes.
        device: where it computes; blocks move there one by one.
        count: processes.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()
    mesh = DeviceMesh(device.type, list(range(count)))
    scalars = {p for p in network.parameters() if p.ndim == 0}
    # The outermost is divided again, too: after an evaluation of averaged weights it would keep those.
    for module in (*recompute.find_repeated_blocks(network), network):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
    for scalar in scalars:
        scalar.data = scalar.data.to(device)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    if hasattr(network, "packed"):
        register_fsdp_forward_method(network, "packed")


def is_divided(network: nn.Module) -> bool:
    """Whether the processes share the weights of a network."""
    return any(is_sharded(p) for p in network.parameters())


def replace_parameters(optimizer: torch.optim.Optimizer, before: dict[str, nn.Parameter], network: nn.Module) -> None:
    """Give an optimizer without state the parameters of the divided network in place of those before, by name.

    Groups with whole and divided parameters are split, since no kernel takes both.
    """
    names = {id(parameter): name for name, parameter in before.items()}
    now = dict(network.named_parameters())
    groups = []
    for group in optimizer.param_groups:
        parameters = [now[names[id(p)]] for p in group["params"]]
        kinds = [[p for p in parameters if is_sharded(p) is divided] for divided in (True, False)]
        groups += [{**group, "params": kind} for kind in kinds if kind]
    optimizer.param_groups[:] = groups
