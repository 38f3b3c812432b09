"""Division: a network in two parts, the frozen prefix that need be computed once for a sample, and the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from runtime.data.dataset import Inputs
from runtime.models.freeze import frozen_parts

Outputs = Tensor | Mapping[str, Tensor]
CLOSE = 1e-4
"""How far the two parts may be from the whole, relative to its largest output: the rounding of fp32."""


@dataclass(frozen=True)
class FrozenSplit:
    """What a network's `divided(*inputs)` gives.

    The prefix takes the inputs of the network and gives activations; the rest takes these and gives the outputs. The
    activations are one tensor (N, ...), or (N, tokens, ...) with a mask (N, tokens) of the real tokens behind it.
    """

    name: str
    """The prefix in words: `the embeddings and 10 of 12 layers`."""
    prefix: Callable[..., Inputs]
    rest: Callable[..., Outputs]


@dataclass(frozen=True)
class CacheSaving:
    """What it would cost and save to keep the activations of a prefix."""

    name: str
    numbers: int
    """Numbers of one sample's activations; of one token's where they are ragged."""
    ragged: bool
    share: float
    """Arithmetic of a training step that the prefix takes: forward alone, where the rest goes backward too."""
    work: float
    """Floating-point operations of the prefix for each byte that is kept."""


def leading(parts: Iterable[nn.Module]) -> int:
    """How many of these, from the first on, have nothing that is trained."""
    count = 0
    for part in parts:
        if any(p.requires_grad for p in part.parameters()):
            break
        count += 1
    return count


def in_sequence(name: str, parts: Sequence[nn.Module], rest: Callable[[Tensor], Tensor]) -> FrozenSplit | None:
    """The division of a network whose parts follow one another and are followed by `rest`.

    Once all parts are frozen, what `rest` needs is their output alone.
    """
    count = leading(parts)
    if not any(True for part in parts[:count] for _ in part.parameters()):
        return None
    first, second = nn.Sequential(*parts[:count]), nn.Sequential(*parts[count:])
    return FrozenSplit(f"{count} of {len(parts)} {name}", lambda x: (first(x),), lambda x: rest(second(x)))


def of(model: nn.Module, inputs: Inputs) -> FrozenSplit | None:
    """The division of a network with frozen parts, tried on some inputs.

    Returns:
        None if the network offers none, or the two parts do not give what the whole gives, or the prefix draws random
        numbers even though its frozen parts are in evaluation mode.
    """
    divided = getattr(model, "divided", None)
    if divided is None or all(p.requires_grad for p in model.parameters()):
        return None
    try:
        with evaluating(model):
            found: FrozenSplit | None = divided(*inputs)
            return found if found and _like_the_whole(model, found, inputs) and _settled(model, found, inputs) else None
    except Exception:  # a library's network that cannot be cut this way may raise anything; whole, it still works
        return None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, in which a look at a network changes no statistics; afterwards every mode is as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def saving(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> CacheSaving:
    """What keeping the activations would cost and save, counted on some inputs."""
    with evaluating(model), torch.no_grad():
        with FlopCounterMode(display=False) as first:
            kept = division.prefix(*inputs)
        with FlopCounterMode(display=False) as second:
            division.rest(*kept)
    prefix, rest = first.get_total_flops(), second.get_total_flops()
    return CacheSaving(
        division.name,
        kept[0][0].numel() // (kept[0].shape[1] if len(kept) > 1 else 1),
        len(kept) > 1,
        prefix / max(1, prefix + 3 * rest),
        prefix / (4 * kept[0].numel()),
    )


@torch.no_grad()
def _like_the_whole(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> bool:
    whole, parts = (tensors(outputs) for outputs in (model(*inputs), division.rest(*division.prefix(*inputs))))
    return all(
        float((one - two).abs().max()) <= CLOSE * max(1.0, float(one.abs().max()))
        for one, two in zip(whole, parts, strict=True)
    )


def tensors(outputs: Outputs) -> list[Tensor]:
    """The outputs of a network, one for each head."""
    return [outputs] if isinstance(outputs, Tensor) else list(outputs.values())


@torch.no_grad()
def _settled(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> bool:
    """Whether the prefix gives the same again while the network trains."""
    model.train()
    for part in frozen_parts(model):
        part.eval()
    seen = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        seen.append(division.prefix(*inputs)[0])
    return torch.equal(*seen)
