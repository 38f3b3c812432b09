"""Shards weights, gradients and optimizer state of a network over the processes, with torch's FSDP2 (`fully_shard`).

Each repeated block, and the rest of the network, is gathered when it computes and sharded again afterwards (S.
Rajbhandari et al. 2020, ZeRO, stage 3). Gradients are summed, not averaged, since each loss is already divided by the
weight of the whole batch.
"""

from __future__ import annotations

import torch
from torch import nn

from drivetrain.distributed.sharded_tensor import is_sharded
from drivetrain.models import recompute


def shard(network: nn.Module, device: torch.device, count: int) -> None:
    """Shard a network in place; its parameters become other objects of the same names.

    Parameters without a dimension stay whole, as `fully_shard` cannot shard them.

    Args:
        network: the network, with the same weights in all processes.
        device: device of the computation; blocks are moved there one by one.
        count: number of processes.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()
    mesh = DeviceMesh(device.type, list(range(count)))
    scalars = {p for p in network.parameters() if p.ndim == 0}
    # The outermost module is sharded again, too; otherwise it would keep averaged weights after their evaluation.
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
    """Whether each process holds only a part of the network's weights."""
    return any(is_sharded(p) for p in network.parameters())


def replace_parameters(optimizer: torch.optim.Optimizer, before: dict[str, nn.Parameter], network: nn.Module) -> None:
    """Give an optimizer without state the parameters of the sharded network.

    Groups with whole and sharded parameters are split, since no kernel takes both.

    Args:
        optimizer: the optimizer.
        before: its present parameters, by name.
        network: the sharded network.
    """
    names = {id(parameter): name for name, parameter in before.items()}
    sharded_parameters = dict(network.named_parameters())
    groups = []
    for group in optimizer.param_groups:
        parameters = [sharded_parameters[names[id(p)]] for p in group["params"]]
        sharded, whole = ([p for p in parameters if is_sharded(p) is kind] for kind in (True, False))
        groups += [{**group, "params": subset} for subset in (sharded, whole) if subset]
    optimizer.param_groups[:] = groups
