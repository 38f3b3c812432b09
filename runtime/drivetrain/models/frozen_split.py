"""Splits a network into a frozen prefix, which needs to be computed only once per sample, and the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.data.dataset import Inputs
from drivetrain.models.freeze import frozen_parts

Outputs = Tensor | Mapping[str, Tensor]
MAX_SPLIT_DIFFERENCE = 1e-4
"""Largest difference between the split and the whole network, relative to its largest output; fp32 rounding."""


@dataclass(frozen=True)
class FrozenSplit:
    """A network split in two, as returned by its `split_at_frozen(*inputs)`.

    The prefix maps the inputs of the network to activations, the rest maps these to the outputs. The activations are
    one tensor (N, ...), or (N, tokens, ...) followed by a mask (N, tokens) of the real tokens.
    """

    name: str
    """The prefix in words, such as `the embeddings and 10 of 12 layers`."""
    prefix: Callable[..., Inputs]
    rest: Callable[..., Outputs]
    packed: Callable[..., Outputs] | None = None
    """The rest without padding, if it can compute that."""


@dataclass(frozen=True)
class CacheSaving:
    """What caching the activations of a prefix costs and saves."""

    name: str
    numbers: int
    """Values per sample in the cache; per token if lengths differ."""
    ragged: bool
    share: float
    """The prefix's share of the FLOPs of a training step: it runs forward only, the rest also backward."""
    work: float
    """FLOPs of the prefix per cached byte."""


def count_leading_frozen(parts: Iterable[nn.Module]) -> int:
    """The number of modules, counted from the first, without a trainable parameter."""
    count = 0
    for part in parts:
        if any(p.requires_grad for p in part.parameters()):
            break
        count += 1
    return count


def in_sequence(name: str, parts: Sequence[nn.Module], remainder: Callable[[Tensor], Tensor]) -> FrozenSplit | None:
    """Split a sequence of modules that is followed by `remainder`.

    If all modules are frozen, only their final output is cached.
    """
    count = count_leading_frozen(parts)
    if not any(True for part in parts[:count] for _ in part.parameters()):
        return None
    first, second = nn.Sequential(*parts[:count]), nn.Sequential(*parts[count:])
    return FrozenSplit(f"{count} of {len(parts)} {name}", lambda x: (first(x),), lambda x: remainder(second(x)))


def of(model: nn.Module, inputs: Inputs) -> FrozenSplit | None:
    """Split a network with frozen parts, and check the split on some inputs.

    Returns:
        None if the network has no split, if the split changes the outputs, or if the prefix is random although its
        frozen modules are in evaluation mode.
    """
    split = getattr(model, "split_at_frozen", None)
    if split is None or all(p.requires_grad for p in model.parameters()):
        return None
    try:
        with evaluating(model):
            division: FrozenSplit | None = split(*inputs)
            return (
                division
                if division and _like_the_whole(model, division, inputs) and _is_deterministic(model, division, inputs)
                else None
            )
    except Exception:  # a third-party network can raise anything here; without a split it still trains
        return None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the context, so that a probe changes no statistics; modes are restored afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def saving(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> CacheSaving:
    """Measure, on some inputs, what caching the activations would cost and save."""
    with evaluating(model), torch.no_grad():
        with _counting(model) as first:
            activations = division.prefix(*inputs)
        with _counting(model) as second:
            division.rest(*activations)
    prefix, remainder = sum(first), sum(second)
    return CacheSaving(
        division.name,
        activations[0][0].numel() // (activations[0].shape[1] if len(activations) > 1 else 1),
        len(activations) > 1,
        prefix / max(1, prefix + 3 * remainder),
        prefix / (4 * activations[0].numel()),
    )


@contextlib.contextmanager
def _counting(model: nn.Module) -> Iterator[list[int]]:
    """Counts the FLOPs of the block; those of recurrent layers from their weights, since torch does not count them."""
    flops: list[int] = []

    def recurrent(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        steps = outputs[0].numel() // outputs[0].shape[-1]
        flops.append(2 * steps * sum(p.numel() for p in layer.parameters() if p.ndim == 2))

    handles = [layer.register_forward_hook(recurrent) for layer in model.modules() if isinstance(layer, nn.RNNBase)]
    try:
        with FlopCounterMode(display=False) as counter:
            yield flops
        flops.append(counter.get_total_flops())
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _like_the_whole(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> bool:
    undivided, parts = (tensors(outputs) for outputs in (model(*inputs), division.rest(*division.prefix(*inputs))))
    return all(
        float((one - two).abs().max()) <= MAX_SPLIT_DIFFERENCE * max(1.0, float(one.abs().max()))
        for one, two in zip(undivided, parts, strict=True)
    )


def tensors(outputs: Outputs) -> list[Tensor]:
    """The outputs of a network as a list, one tensor per head."""
    return [outputs] if isinstance(outputs, Tensor) else list(outputs.values())


@torch.no_grad()
def _is_deterministic(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> bool:
    """Whether the prefix is deterministic while the network is in training mode."""
    model.train()
    for part in frozen_parts(model):
        part.eval()
    outputs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        outputs.append(division.prefix(*inputs)[0])
    return torch.equal(*outputs)
