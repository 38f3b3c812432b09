"""Whether a network has layers of the user's own, and in which mode it is evaluated then."""

from __future__ import annotations

import torch
from torch import nn

_KNOWN = ("torch.", "runtime.", "timm.", "transformers.")


def has_own_layers(model: nn.Module) -> bool:
    """Whether a layer of the network is the user's own, and neither torch's nor of a library that is used here."""
    return not all(type(layer).__module__.startswith(_KNOWN) for layer in model.modules())


def without_gradients(model: nn.Module) -> torch.no_grad | torch.inference_mode:
    """A block, or decorator, that computes no gradients of the network: the faster one, unless a layer might ask for one
    by itself, as networks do whose forward pass calls `torch.autograd.grad`.
    """
    return torch.no_grad() if has_own_layers(model) else torch.inference_mode()
