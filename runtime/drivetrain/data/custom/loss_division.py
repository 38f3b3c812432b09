"""How the loss of a batch follows from those of its parts: known for torch's own losses, tried out for all others.

loss of a batch = sum over its parts of (what the part counts * its loss) / what the batch counts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.to_device import onto
from drivetrain.errors import OutOfMemory, SpecError

TOLERANCE = 2e-5
"""Relative difference of float32 sums in another order; a loss that is put together wrongly differs by more."""
MIN_TRIAL_SAMPLES = 8
"""Samples of a trial, at least: parts of several sizes."""
MAX_TRIAL_NUMBERS = 2**22
"""Numbers in the outputs of a trial, at most."""
DIVIDING: Sequence[tuple[Callable[..., Any], Callable[..., Tensor]]] = (
    (nn.CrossEntropyLoss.forward, F.cross_entropy),
    (nn.NLLLoss.forward, F.nll_loss),
    (F.cross_entropy, F.cross_entropy),
    (F.nll_loss, F.nll_loss),
)
"""Losses of torch whose mean divides by the weights of the labels that count; all others divide by the samples."""
KEYWORDS = ("weight", "ignore_index", "label_smoothing", "reduction")
"""Of these losses; their older ones are left alone."""
SPLITTABLE = "to split batches, return one value for each sample, or give weight_of(targets): what the loss divides by"
Refuse = Callable[[str, str, str], SpecError]
"""(given, possible, do) -> the error."""
Count = Callable[[Any], Tensor]
"""(targets of N samples) -> what they count: a number, or one for each sample, shape (N,)."""
Trial = Callable[[slice], Sequence[Tensor]]
"""Numbers of some samples that follow from those of parts as the loss does: the loss itself, its gradient."""


@dataclass(frozen=True)
class Division:
    """How the loss of a batch is put together."""

    count: Count | None = None
    """What a part counts; None for its samples."""
    summed: bool = False
    """Whether the loss is the sum of those of its parts."""
    obstacle: str = ""
    """Why it cannot be put together, if it cannot."""


@dataclass(frozen=True)
class TorchMean:
    """Cross entropy or negative log likelihood of torch: a mean over the labels that count, by their weights."""

    loss: Callable[..., Tensor]
    settings: dict[str, Any]
    """Its keywords: `weight`, `ignore_index`, `label_smoothing`."""

    @classmethod
    def of(cls, function: Any) -> TorchMean | None:
        """The loss that a module or a function is; None if it is none of these, or no mean."""
        computes, settings = function, dict[str, Any]()
        if isinstance(function, partial) and not function.args:
            computes, settings = function.func, dict(function.keywords)
        elif isinstance(function, nn.Module):
            computes = type(function).forward
            settings = {name: getattr(function, name) for name in KEYWORDS if hasattr(function, name)}
        loss = next((loss for named, loss in DIVIDING if named is computes), None)
        if loss is None or not set(settings) <= set(KEYWORDS) or settings.pop("reduction", "mean") != "mean":
            return None
        return cls(loss, settings)

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weighted terms, summed for each sample; shape (N,)."""
        settings = dict(self.settings)
        if settings.get("weight") is not None:
            settings["weight"] = onto(outputs.device, settings["weight"])
        return self.loss(outputs, targets, **settings, reduction="none").reshape(len(targets), -1).sum(dim=1)

    def weights(self, targets: Tensor) -> Tensor:
        """What each sample counts; shape (N,). Probabilities of classes have no weights, as in torch."""
        labels = targets.reshape(len(targets), -1)
        if targets.is_floating_point():
            return torch.full((len(targets),), targets[:1, 0].numel(), dtype=torch.float64, device=targets.device)
        counts = labels.ne(self.settings.get("ignore_index", -100))
        table: Tensor | None = self.settings.get("weight")
        if table is None:
            return counts.sum(dim=1, dtype=torch.float64)
        weights = onto(targets.device, table.detach()).double()[labels.clamp(0, len(table) - 1)]
        return torch.where(counts, weights, 0.0).sum(dim=1)


def total(count: Count, targets: Any) -> Tensor:
    """What some samples count together, in float64."""
    return torch.as_tensor(count(targets)).double().sum()


def try_division(
    trial: Trial,
    samples: int,
    name: str,
    refuse: Refuse,
    weight_of: Count | None,
    counted: Callable[[slice], Any],
    tolerance: float = TOLERANCE,
) -> Division | None:
    """How a loss is put together, judged by one batch and parts of it of several sizes; None if the batch has no loss.

    Args:
        trial: computes the loss of some samples.
        samples: of the batch, two or more.
        name: of the loss.
        refuse: makes the error.
        weight_of: the user's; None to try the number of samples, and the sum.
        counted: what `weight_of` gets of some samples.
        tolerance: relative difference that rounding explains.

    Raises:
        SpecError: if `weight_of` raises, or is not what the loss divides by.
    """
    slices = [slice(0, samples), *(slice(*ends) for ends in pairwise(sorted({0, 1, 1 + samples // 3, samples})))]
    ways = [
        (Division(), [float(part.stop - part.start) for part in slices]),
        (Division(summed=True), [1.0] * len(slices)),
    ]
    if weight_of is not None:
        with blame_user_code(lambda told, do: refuse(f"weight_of raised {told}", "", do)):
            ways = [(Division(weight_of), [float(total(weight_of, counted(part))) for part in slices])]
    try:
        of_batch = [value.double() for value in trial(slices[0])]
    except Exception:  # the user's code may raise anything
        return None
    if not all(bool(value.isfinite().all()) for value in of_batch):
        return None
    try:
        parts = [[value.double() for value in trial(part)] for part in slices[1:]]
    except Exception as error:  # the same
        return Division(obstacle=f"{name} raises {type(error).__name__} for a part of a batch")
    for division, (weight, *weights) in ways:
        # A part that counts nothing may have no loss: 0 / 0.
        terms = [[value * values for values in part] for value, part in zip(weights, parts, strict=True) if value]
        pairs = zip(of_batch, zip(*terms, strict=True), strict=True) if terms else ()
        if terms and all(_equal(weight * values, of_parts, tolerance) for values, of_parts in pairs):
            return division
    if weight_of is not None:
        raise refuse(
            f"{name} of a batch is not the mean over its parts weighted by weight_of",
            "weight_of gives what the loss of some samples divides by: a number, or one for each",
            "correct weight_of, or leave it out",
        )
    return Division(obstacle=f"{name} of a batch is neither the mean nor the sum over its parts")


def _equal(value: Tensor, terms: Sequence[Tensor], tolerance: float) -> bool:
    parts = torch.stack(list(terms))
    return bool((value - parts.sum(dim=0)).abs().max() <= tolerance * parts.abs().sum(dim=0).max())


def too_large(description: str, obstacle: str) -> OutOfMemory:
    """The error of a batch that does not fit into memory and cannot be split."""
    action = f"lower train.batch_size; {SPLITTABLE}"
    return OutOfMemory(f"{description}, and {obstacle}", "smaller batches, or a loss that can be split", action)


def invent_outputs(outputs: Tensor, samples: int) -> Iterator[Tensor]:
    """Outputs of so many samples, different for each, between those of a network: with noise; then without, in their
    range, for losses that take probabilities.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (samples, *[1] * (outputs.ndim - 1))
    share, factor = (torch.rand(shape, generator=generator).to(outputs) for _ in range(2))
    between = outputs[:1] + share * (outputs[-1:] - outputs[:1])
    yield between + torch.randn(between.shape, generator=generator).to(outputs)
    yield between * (0.5 + 0.5 * factor)
