"""Splits a network into a frozen prefix, which is computed only once per sample, and the remaining layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Inputs
from drivetrain.models.flop_counter import count_flops
from drivetrain.models.freeze import find_frozen_parts

Outputs = Tensor | Mapping[str, Tensor]
MAX_SPLIT_DIFFERENCE = 1e-4
"""Largest allowed difference between outputs of the split and the whole network, relative to the largest output."""


@dataclass(frozen=True)
class FrozenSplit:
    """A network split in two, as returned by its `split_at_frozen(*inputs)`.

    The prefix maps the inputs of the network to activations, the rest maps the activations to the outputs. Activations
    are one tensor (N, ...), or (N, tokens, ...) followed by a mask (N, tokens) of the real tokens.
    """

    name: str
    """Description of the prefix, such as `the embeddings and 10 of 12 layers`."""
    prefix: Callable[..., Inputs]
    rest: Callable[..., Outputs]
    packed: Callable[..., Outputs] | None = None
    """The rest, computed without padding; None if that is not possible."""


@dataclass(frozen=True)
class CacheSaving:
    """Cost and saving of caching the activations of a prefix."""

    name: str
    """Description of the prefix."""
    numbers: int
    """Number of cached values per sample, or per token if lengths differ."""
    ragged: bool
    """Whether samples have different lengths."""
    share: float
    """Share of the prefix in the FLOPs of a training step; it runs forward only, the rest also backward."""
    work: float
    """FLOPs of the prefix per cached byte."""


def count_leading_frozen(modules: Iterable[nn.Module]) -> int:
    """Count the modules before the first module with a trainable parameter."""
    count = 0
    for module in modules:
        if any(p.requires_grad for p in module.parameters()):
            break
        count += 1
    return count


def split_sequence(name: str, modules: Sequence[nn.Module], rest: Callable[[Tensor], Tensor]) -> FrozenSplit | None:
    """Split a sequence of modules, whose output `rest` processes, before the first trainable module.

    If all modules are frozen, only their final output is cached.
    """
    count = count_leading_frozen(modules)
    frozen, trained = nn.Sequential(*modules[:count]), nn.Sequential(*modules[count:])
    if not list(frozen.parameters()):
        return None
    return FrozenSplit(f"{count} of {len(modules)} {name}", lambda x: (frozen(x),), lambda x: rest(trained(x)))


def split_network(model: nn.Module, inputs: Inputs) -> FrozenSplit | None:
    """Split a network with frozen parts, and check the split on some inputs.

    Returns:
        The split; None if the network has none, if it changes the outputs, or if the prefix is random although its
        frozen modules are in evaluation mode.
    """
    split = getattr(model, "split_at_frozen", None)
    if split is None or all(p.requires_grad for p in model.parameters()):
        return None
    try:
        with evaluating(model):
            division: FrozenSplit | None = split(*inputs)
            if division is None:
                return None
            is_same = give_same_outputs(model, lambda *x: division.rest(*division.prefix(*x)), inputs)
            return division if is_same and _is_deterministic(model, division, inputs) else None
    except Exception:  # a third-party network can raise anything here; it can be trained without a split
        return None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode in the block, so a probe changes no statistics; restore all modes at its end."""
    with keeping_modes(model):
        model.eval()
        yield


@contextlib.contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of all modules at the end of the block."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def measure_saving(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> CacheSaving:
    """Measure on some inputs the cost and saving of caching the activations."""
    with evaluating(model), torch.no_grad():
        with _counting_flops(model) as prefix_counts:
            activations = division.prefix(*inputs)
        with _counting_flops(model) as rest_counts:
            division.rest(*activations)
    prefix_flops, rest_flops = sum(prefix_counts), sum(rest_counts)
    # A second activation is the mask of texts.
    is_ragged, values = len(activations) > 1, activations[0]
    return CacheSaving(
        division.name,
        values[0].numel() // (values.shape[1] if is_ragged else 1),
        is_ragged,
        prefix_flops / max(1, prefix_flops + 3 * rest_flops),
        prefix_flops / (4 * values.numel()),
    )


@contextlib.contextmanager
def _counting_flops(model: nn.Module) -> Iterator[list[int]]:
    """Count the FLOPs of the block; recurrent layers are counted by their weights, as torch does not count them."""
    flops: list[int] = []

    def count_recurrent(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        steps = outputs[0].numel() // outputs[0].shape[-1]
        flops.append(2 * steps * sum(p.numel() for p in layer.parameters() if p.ndim == 2))

    with contextlib.ExitStack() as hooks, count_flops() as counter:
        for layer in model.modules():
            if isinstance(layer, nn.RNNBase):
                hooks.enter_context(layer.register_forward_hook(count_recurrent))
        yield flops
    flops.append(counter.get_total_flops())


@torch.no_grad()
def give_same_outputs(
    network: Callable[..., Outputs], variant: Callable[..., Outputs], inputs: Sequence[Tensor]
) -> bool:
    """Return whether two ways to compute a network give the same outputs, except for rounding."""
    for expected, output in zip(list_outputs(network(*inputs)), list_outputs(variant(*inputs)), strict=True):
        tolerance = MAX_SPLIT_DIFFERENCE * max(1.0, float(expected.abs().max()))
        if not float((expected - output).abs().max()) <= tolerance:  # also false for NaN
            return False
    return True


def list_outputs(outputs: Outputs) -> list[Tensor]:
    """Return the outputs of a network as a list with one tensor per head."""
    return [outputs] if isinstance(outputs, Tensor) else list(outputs.values())


@torch.no_grad()
def _is_deterministic(model: nn.Module, division: FrozenSplit, inputs: Inputs) -> bool:
    """Return whether the prefix gives the same activations for two seeds, with the network in training mode."""
    model.train()
    for module in find_frozen_parts(model):
        module.eval()
    outputs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        outputs.append(division.prefix(*inputs)[0])
    return torch.equal(*outputs)
