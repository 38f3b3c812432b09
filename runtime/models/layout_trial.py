"""Whether a network trains with images and weights in channels_last layout, tried on two samples before it is chosen.

`x.view(x.size(0), -1)`, as in many tutorials, fails there: the numbers of a sample do not lie one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from runtime.data.dataset import Dataset, Inputs
from runtime.models import dry_run, own_layers


def obstacle(model: nn.Module, dataset: Dataset) -> str:
    """Why a forward and backward pass fails in channels_last layout alone; empty if it does not, or if no layer of the
    user's own could make it fail. Weights, buffers, gradients and generators stay as they are.
    """
    layers = list(model.modules())
    if not any(isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in layers):
        return ""
    if not own_layers.has_own_layers(model):  # those of the libraries are run in both layouts by tests
        return ""
    inputs = dry_run.first(dataset, dataset.train).inputs
    if all(x.ndim != 4 for x in inputs):
        return ""
    with torch.random.fork_rng(), torch.enable_grad():
        problem = _problem(model, inputs, torch.channels_last)
        return problem if problem and not _problem(model, inputs, torch.contiguous_format) else ""


def _problem(model: nn.Module, inputs: Inputs, layout: torch.memory_format) -> str:
    """What a pass over copies in this layout raised; empty if nothing."""

    def copied(tensor: Tensor) -> Tensor:
        values = tensor.detach().clone()
        return values.to(memory_format=layout) if values.ndim == 4 else values

    state = {name: copied(p).requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    state |= {name: copied(buffer) for name, buffer in model.named_buffers()}
    try:
        outputs: Any = torch.func.functional_call(model, state, tuple(map(copied, inputs)))
        floats = [x.float().sum() for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        torch.stack(floats).sum().backward()  # type: ignore[no-untyped-call]
    except (
        Exception
    ) as error:  # a network may raise anything, and the pass in the usual layout explains what is no matter of layout
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""
