"""In which modes a program calls a training, and what that means for it: said, and kept among the events of the run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from runtime.data.labels import listed


def evaluated(model: object) -> tuple[str, ...]:
    """The layers that a program has put into evaluation mode, if the network itself is in training mode."""
    if not isinstance(model, nn.Module) or not model.training:
        return ()
    return tuple(name for name, layer in model.named_modules() if not layer.training)


def consequences(model: object, *, unclipped: bool) -> Iterator[tuple[str, str]]:
    """What the training does with the objects and modes of a call, as the kind and the text of events.

    Args:
        model: of the call, before anything has changed its modes.
        unclipped: whether the optimizer is the program's, and gradients are not clipped for that.
    """
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        text = 'the autocast around the call does not hold within it; optimize={"precision": "bf16"} asks for bf16'
        yield "precision", text
    if unclipped:
        yield "optimizer", "your own, so its gradients are not clipped; clip_norm=1.0 clips them"
    if isinstance(model, nn.Module):
        yield from (("model", text) for text in _modes(model))


def _modes(model: nn.Module) -> Iterator[str]:
    if not model.training:
        yield "is in evaluation mode, and trained in training mode; .train() before the call, and .eval() of layers, choose"
    if names := evaluated(model):
        yield f"{listed(names, 3)} in evaluation mode, as the program has set it"
    counting = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        and (layer.training or not model.training)
        and any(True for _ in layer.parameters())
        and not any(p.requires_grad for p in layer.parameters())
    ]
    if counting:
        yield (
            f"frozen, and still in training mode: {listed(counting, 3)} normalizes by each batch; .eval() before the call "
            "keeps it as it is"
        )
