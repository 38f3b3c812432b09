"""The user's own loss, and the computation of the loss of a batch from the losses of its parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.data.custom import user_code
from drivetrain.data.custom.broadcasts import SAME_SHAPE, find_broadcast, tile_rows
from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import onto
from drivetrain.errors import OutOfMemory, SpecError
from drivetrain.job.custom import CustomJob, CustomLossSpec

TOLERANCE = 2e-5
"""Largest relative difference due to the order of float32 sums; a loss that is combined wrongly differs by more."""
MIN_TRIAL_SAMPLES = 8
"""Smallest number of samples in a trial, so that its parts have several sizes."""
MAX_TRIAL_NUMBERS = 2**22
"""Largest number of elements in the outputs of a trial."""
WEIGHTED_MEANS: Sequence[tuple[Callable[..., Any], Callable[..., Tensor]]] = (
    (nn.CrossEntropyLoss.forward, F.cross_entropy),
    (nn.NLLLoss.forward, F.nll_loss),
    (F.cross_entropy, F.cross_entropy),
    (F.nll_loss, F.nll_loss),
)
"""Losses of torch whose mean divides by the weights of the labels that count; all others divide by the samples."""
KEYWORDS = ("weight", "ignore_index", "label_smoothing", "reduction")
"""Supported keywords of these losses; a loss with one of torch's older keywords is tried out instead."""
SPLITTABLE = "to split batches, return one value for each sample, or give weight_of(targets): what the loss divides by"
Refuse = Callable[[str, str, str], SpecError]
"""Function that makes the error from the problem, the possible values, and the action."""
Count = Callable[[Any], Tensor]
"""Function that computes the weight of N samples from their targets: one number, or one per sample, shape (N,)."""
ComputeLoss = Callable[[slice], Sequence[Tensor]]
"""Function that computes the loss of some samples, its gradient, or other tensors that combine as the loss does."""


@dataclass(frozen=True)
class LossRule:
    """Rule that combines the loss of a batch from the losses of its parts."""

    count: Count | None = None
    """Function that computes the weight of a part; None if the weight is the number of its samples."""
    summed: bool = False
    """Whether the loss is the sum of the losses of the parts, not their mean."""
    obstacle: str = ""
    """Reason why the loss cannot be combined from parts; empty if it can."""


@dataclass(frozen=True)
class TorchMean:
    """Cross entropy or negative log likelihood of torch: a mean over the labels that count, by their weights."""

    loss: Callable[..., Tensor]
    settings: dict[str, Any]
    """Keywords of the loss: `weight`, `ignore_index`, `label_smoothing`."""

    @classmethod
    def of(cls, function: Any) -> TorchMean | None:
        """Recognize such a loss in a module or a function; None for another loss, or without a mean."""
        implementation, settings = function, dict[str, Any]()
        if isinstance(function, partial) and not function.args:
            implementation, settings = function.func, dict(function.keywords)
        elif isinstance(function, nn.Module):
            implementation = type(function).forward
            settings = {name: getattr(function, name) for name in KEYWORDS if hasattr(function, name)}
        loss = next((loss for known, loss in WEIGHTED_MEANS if known is implementation), None)
        if loss is None or not set(settings) <= set(KEYWORDS) or settings.pop("reduction", "mean") != "mean":
            return None
        return cls(loss, settings)

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the weighted terms, summed for each sample; shape (N,)."""
        settings = dict(self.settings)
        if settings.get("weight") is not None:
            settings["weight"] = onto(outputs.device, settings["weight"])
        return self.loss(outputs, targets, **settings, reduction="none").reshape(len(targets), -1).sum(dim=1)

    def weights(self, targets: Tensor) -> Tensor:
        """Compute the weight of each sample, shape (N,); as in torch, class probabilities have no weights."""
        labels = targets.reshape(len(targets), -1)
        if targets.is_floating_point():
            return torch.full((len(targets),), targets[:1, 0].numel(), dtype=torch.float64, device=targets.device)
        counts = labels.ne(self.settings.get("ignore_index", -100))
        class_weights: Tensor | None = self.settings.get("weight")
        if class_weights is None:
            return counts.sum(dim=1, dtype=torch.float64)
        weights = onto(targets.device, class_weights.detach()).double()[labels.clamp(0, len(class_weights) - 1)]
        return torch.where(counts, weights, 0.0).sum(dim=1)


def sum_counts(count: Count, targets: Any) -> Tensor:
    """Compute the total weight of some samples, in float64."""
    return torch.as_tensor(count(targets)).double().sum()


def try_division(
    compute_loss: ComputeLoss,
    samples: int,
    name: str,
    refuse: Refuse,
    weight_of: Count | None,
    targets_of: Callable[[slice], Any],
    tolerance: float = TOLERANCE,
) -> LossRule | None:
    """Find the rule that combines a loss by a trial on two or more samples; None if the batch has no loss.

    `weight_of` gets the result of `targets_of` for some samples; without it, the number of samples as weights and the
    sum are tried. `tolerance` is the largest relative difference due to rounding.

    Raises:
        SpecError: if `weight_of` raises, or the loss does not divide by its result.
    """
    # The whole batch, then the parts that make up the batch.
    slices = [slice(0, samples), *(slice(*ends) for ends in pairwise(sorted({0, 1, 1 + samples // 3, samples})))]
    # Each possible division, with its weights of the slices.
    candidates = [
        (LossRule(), [float(part.stop - part.start) for part in slices]),
        (LossRule(summed=True), [1.0] * len(slices)),
    ]
    if weight_of is not None:
        with blame_user_code(refuse, "weight_of raised"):
            candidates = [(LossRule(weight_of), [float(sum_counts(weight_of, targets_of(part))) for part in slices])]
    try:
        batch_values = [value.double() for value in compute_loss(slices[0])]
    except Exception:  # the user's code may raise anything
        return None
    if not all(bool(value.isfinite().all()) for value in batch_values):
        return None
    try:
        part_values = [[value.double() for value in compute_loss(part)] for part in slices[1:]]
    except Exception as error:  # as above
        return LossRule(obstacle=f"{name} raises {type(error).__name__} for a part of a batch")
    for division, weights in candidates:
        if _fits(weights, batch_values, part_values, tolerance):
            return division
    if weight_of is not None:
        raise refuse(
            f"{name} of a batch is not the mean over its parts weighted by weight_of",
            "weight_of gives what the loss of some samples divides by: a number, or one for each",
            "correct weight_of, or leave it out",
        )
    return LossRule(obstacle=f"{name} of a batch is neither the mean nor the sum over its parts")


def _fits(
    weights: Sequence[float], batch_values: list[Tensor], part_values: list[list[Tensor]], tolerance: float
) -> bool:
    """Return whether the weighted losses of the parts add up to the weighted loss of the batch (first weight)."""
    batch_weight, *part_weights = weights
    # A part of weight 0 is skipped: it may have no loss (0 / 0).
    weighted_parts = [
        [weight * value for value in values] for weight, values in zip(part_weights, part_values, strict=True) if weight
    ]
    return bool(weighted_parts) and all(
        _are_equal(batch_weight * batch_value, terms, tolerance)
        for batch_value, terms in zip(batch_values, zip(*weighted_parts, strict=True), strict=True)
    )


def _are_equal(value: Tensor, terms: Sequence[Tensor], tolerance: float) -> bool:
    """Return whether a value is the sum of the terms, except for rounding relative to the sizes of the terms."""
    parts = torch.stack(list(terms))
    return bool((value - parts.sum(dim=0)).abs().max() <= tolerance * parts.abs().sum(dim=0).max())


def cannot_split_error(description: str, obstacle: str) -> OutOfMemory:
    """Return the error for a batch that does not fit into memory and cannot be split."""
    action = f"lower train.batch_size; {SPLITTABLE}"
    return OutOfMemory(f"{description}, and {obstacle}", "smaller batches, or a loss that can be split", action)


def invent_outputs(outputs: Tensor, samples: int) -> Iterator[Tensor]:
    """Yield two sets of outputs for `samples` samples, all different, in the range of the outputs of a network.

    The first set has noise added; the second has none, for losses that take probabilities.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (samples, *[1] * (outputs.ndim - 1))
    share, factor = (torch.rand(shape, generator=generator).to(outputs) for _ in range(2))
    between = outputs[:1] + share * (outputs[-1:] - outputs[:1])
    yield between + torch.randn(between.shape, generator=generator).to(outputs)
    yield between * (0.5 + 0.5 * factor)


# Possible results of a loss, for messages.
POSSIBLE = "one term per sample, shape (N,), or their mean as a scalar"


class CustomTerms:
    """Wrapper of a callable (outputs, targets) that returns terms: their sum / the sum of `weights` is a batch's loss.

    `weight_of` computes the weight of samples from their targets; without it, a trial finds the rule.

    Raises:
        SpecError: if the result cannot be a loss.
    """

    def __init__(self, function: Any, name: str, refuse: Refuse, weight_of: Count | None = None) -> None:
        self.function, self.name, self.refuse, self.weight_of = function, name, refuse, weight_of
        if isinstance(function, type) or not callable(function):
            raise refuse(f"{name} is {describe(function)}", "a callable of (outputs, targets)", "return a callable")
        if isinstance(function, nn.Module) and any(p.requires_grad for p in function.parameters()):
            raise refuse(
                f"{name} has trainable parameters, which the optimizer does not update",
                "parameters inside the network",
                "move them into the network",
            )
        self.torch_mean = None if weight_of else TorchMean.of(function)
        self.division = LossRule(self.torch_mean.weights if self.torch_mean else None)
        """Rule that combines the loss of a batch from its parts; before the trial, the mean is assumed."""
        self.is_tried = self.torch_mean is not None
        self.target_shapes: Sequence[tuple[int, ...]] = ((),)
        """Possible shapes of targets for the function, first the shape of the data; () if fixed; one after a trial."""
        self.target_shape: tuple[int, ...] = ()
        """Shape of targets for the function, such as (-1,); () to keep their shape."""
        self.shape_note = ""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)  # moves its buffers, such as class weights
        targets = self._shape_targets(targets)
        if self.torch_mean:
            return self.torch_mean.terms(outputs, targets)
        value, count = self._compute(self.function, outputs, targets), self.division.count
        if count is not None:
            weight = sum_counts(count, targets)
            # A part of weight 0 may have no loss (0 / 0): a zero with a gradient replaces it.
            return value.mean() * weight.to(value) if weight > 0 else (outputs * 0).sum()
        return value if value.ndim or self.division.summed else value.expand(len(targets))

    def weights(self, targets: Tensor) -> Tensor:
        """Compute the weights of samples in the loss of their batch: one for each, shape (N,), or one for all."""
        if self.division.count is None:
            return torch.ones(len(targets), device=targets.device)
        return sum_counts(self.division.count, self._shape_targets(targets)).to(targets.device)

    def set_data_shape(self, raw_targets: Tensor) -> None:
        """Prefer the shape that single numbers have in the data, (N,) or (N, 1), for the targets of the function."""
        shapes = ((-1,), (-1, 1))
        self.target_shapes = shapes if raw_targets.ndim == 1 else shapes[::-1]
        self.target_shape = self.target_shapes[0]

    def _shape_targets(self, targets: Tensor) -> Tensor:
        return targets.reshape(self.target_shape) if self.target_shape else targets

    def notes(self) -> list[str]:
        """Return notes on the splitting of batches and the shape of the targets, if anything is unusual."""
        notes = [self.shape_note] if self.shape_note else []
        if self.division.obstacle:
            notes.append(f"{self.division.obstacle}, so one process computes every batch as a whole; {SPLITTABLE}")
        elif self.division.summed:
            notes.append(f"{self.name} is a sum: validation/loss is that over all validation samples")
        return notes

    def _compute(self, function: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        """Call the loss and check the shape and the gradient of its result."""
        value = function(outputs, targets)
        if not isinstance(value, Tensor):
            raise self.refuse(f"{self.name} gives {describe(value)}", POSSIBLE, "return a tensor")
        if value.ndim > 0 and value.shape != (len(targets),):
            raise self.refuse(
                f"{self.name} gives shape {tuple(value.shape)} for {len(targets)} samples",
                POSSIBLE,
                "average over every dimension except the samples",
            )
        if outputs.requires_grad and not value.requires_grad:
            raise self.refuse(
                f"{self.name} returns a value without a gradient",
                "a differentiable loss",
                "remove detach(), item() and argmax()",
            )
        return value

    def check_call(self, outputs: Tensor, targets: Tensor) -> None:
        """Check a call of the loss, and find the shape of the targets that keeps the samples separate.

        Raises:
            SpecError: if the loss raises, its result cannot be a loss, or it combines every sample with every other.
        """
        rows, row_targets = next(tile_rows(outputs, self._shape_targets(targets)))
        call = f"{self.name}, called with outputs {_shape(rows)} and targets {_shape(row_targets)}, raised"
        with blame_user_code(self.refuse, call):
            self._choose_shape(outputs, targets)

    def _choose_shape(self, outputs: Tensor, targets: Tensor) -> None:
        broadcasts: list[str] = []
        errors: list[Exception] = []
        trial = copy.copy(self)
        data_shape = self.target_shapes[0]
        for shape in self.target_shapes:
            self.target_shape = trial.target_shape = shape
            trial.function = copy.deepcopy(self.function)  # it may change its own state
            try:
                broadcast = find_broadcast(trial, outputs, targets)
            except Exception as error:  # the user's code may raise anything
                errors.append(error)
                continue
            if not broadcast:
                self.target_shapes = (shape,)
                if shape is not data_shape:
                    names = {(-1,): "(N,)", (-1, 1): "(N, 1)"}
                    self.shape_note = (
                        f"{self.name} gets targets of shape {names[shape]}: with {names[data_shape]} it raises, or combines "
                        "every sample with every other"
                    )
                return
            broadcasts.append(broadcast)
        self.target_shape = data_shape
        if not broadcasts:
            raise errors[0]
        raise self.refuse(f"{self.name} {broadcasts[0]}", *SAME_SHAPE)

    def divide(self, outputs: Tensor, targets: Tensor) -> None:
        """Find the rule that combines the loss of a batch from the losses of its parts, unless it is known.

        `outputs` are an example of one or more samples; the labels in `targets` should differ.

        Raises:
            SpecError: if the loss does not divide by the result of `weight_of`.
        """
        if len(self.target_shapes) > 1:
            self.check_call(outputs[:2].detach(), targets[:2])
        if self.is_tried:
            return
        self.is_tried = True
        count = max(MIN_TRIAL_SAMPLES, min(len(targets), MAX_TRIAL_NUMBERS // max(1, outputs[0].numel())))
        targets = self._shape_targets(targets.cpu())[torch.arange(count) * max(1, len(targets) // count) % len(targets)]
        division = None
        # On the CPU, since invented outputs may be invalid, and an invalid index makes a GPU unusable.
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            for rows in invent_outputs(outputs.detach().cpu().clone(), count):
                trial = partial(self._compute_trial, rows, targets)
                division = division or try_division(
                    trial, count, self.name, self.refuse, self.weight_of, targets.__getitem__
                )
        obstacle = "" if self.weight_of else f"{self.name} cannot be computed for samples that are tried"
        self.division = division or LossRule(self.weight_of, obstacle=obstacle)

    def _compute_trial(self, outputs: Tensor, targets: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Compute the mean loss of some samples, and its gradient."""
        rows = outputs[part].clone().requires_grad_()
        # A loss may change its own state, and its arguments in place.
        function = copy.deepcopy(self.function)
        value = self._compute(function, rows.clone(), targets[part].clone()).mean()
        slope = torch.zeros_like(outputs)
        (slope[part],) = torch.autograd.grad(value, rows)
        return value.detach(), slope


def load(job: CustomJob) -> CustomTerms | None:
    """Load the loss in the job's file; None if the job has none.

    Raises:
        SpecError: if the user's code raises, or returns no loss.
    """
    spec, key = job.train.loss, ("train", "loss", "file")
    if not isinstance(spec, CustomLossSpec):
        return None

    refuse: Refuse = partial(job.spec_error, key)
    name = f"{spec.factory}() in {spec.file}"
    with blame_user_code(refuse, f"{name} raised"):
        code = user_code.open_code(job.folder)
        arguments = code.with_copies(spec.arguments)
        user_loss = code.bind(spec.file, spec.factory, arguments)()
        weight_of: Any = code.bind(spec.file, spec.weight_of, {}, arguments) if spec.weight_of else None
    return CustomTerms(user_loss, f"the loss of {name}", refuse, weight_of)


def _shape(values: Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
