"""The state of an optimizer by parameter name, as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runtime.distributed.sharded_tensor import local
from runtime.errors import CheckpointError


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `weight/exp_avg`."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(p)]}/{key}": torch.as_tensor(value)
        for p, entry in optimizer.state.items()
        for key, value in entry.items()
        if value is not None
    }


def load_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load optimizer state by parameter name; of divided parameters, the parts of this process.

    Raises:
        CheckpointError: if a name is unknown.
    """
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"the optimizer state names {name!r}, which does not exist in the network",
                "the network that was saved",
                "undo the change of the model, or use --new",
            )
        parameter = parameters[name]
        place = parameter.device if key != "step" or optimizer.param_groups[0].get("fused") else torch.device("cpu")
        value = value.to(place)
        # Moments take the memory format of their parameter, as fused kernels require.
        if value.ndim == 0 or value.shape != local(parameter).shape:
            optimizer.state[parameter][key] = value.clone()
            continue
        state = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
        local(state).copy_(value)
        optimizer.state[parameter][key] = state
