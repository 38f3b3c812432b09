"""Functions for sharded tensors, of which each process holds a part.

They are torch's DTensors, recognized without importing that package, which takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from drivetrain.errors import CheckpointError


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds a part of this tensor."""
    return hasattr(tensor, "to_local")


def get_local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, in the same memory; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def get_local_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a network by name, with this process's parts of sharded tensors."""
    return {name: get_local_part(value) for name, value in model.state_dict().items()}


@torch.no_grad()
def load_local_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `get_local_state` has returned, in place.

    Raises:
        CheckpointError: if the names are not those of the network.
    """
    current = model.state_dict()
    if not any(is_sharded(value) for value in current.values()):
        model.load_state_dict(state)
        return
    if different_names := sorted(current.keys() ^ state.keys()):
        raise CheckpointError(
            f"the saved weights are not those of this network: {', '.join(different_names[:3])}",
            "the tensors of the network as it was",
            "restore the code of the network, or train anew with --new",
        )
    for name, value in current.items():
        get_local_part(value).copy_(state[name])


def sum_squares(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of the squares of all numbers that this process holds, float64 of shape ()."""
    parts = [get_local_part(tensor) for tensor in tensors]
    if not parts:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(parts)
    return torch.stack([norm.double() for norm in norms]).square().sum()


def cut_part(tensor: Tensor, number: int, count: int) -> Tensor:
    """Cut a tensor into `count` chunks along its first dimension; returns the one that process `number` holds."""
    chunks = torch.chunk(tensor, count)
    return chunks[number] if number < len(chunks) else tensor[:0]
