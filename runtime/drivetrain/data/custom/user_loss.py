"""Wraps the user's loss as terms and weights, so that it is exact when a batch is split into micro-batches."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.custom import code_files, user_code
from drivetrain.data.custom.arrays import describe
from drivetrain.data.custom.loss_division import (
    MAX_TRIAL_NUMBERS,
    MIN_TRIAL_SAMPLES,
    SPLITTABLE,
    Count,
    Division,
    Refuse,
    TorchMean,
    invent_outputs,
    sum_counts,
    try_division,
)
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.errors import Problem, SpecError
from drivetrain.job.custom import CustomJob, CustomLossSpec

# The possible results of a loss, for messages.
POSSIBLE = "one term per sample, shape (N,), or their mean as a scalar"


class CustomTerms:
    """Wraps a callable (outputs, targets) to return terms whose sum over a batch, divided by that of `weights`, is its loss.

    `weight_of` computes the weight of samples from their targets; without it, a trial finds out.

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
        self.division = Division(self.torch_mean.weights if self.torch_mean else None)
        """How the loss of a batch is combined from those of its parts; before the trial, the mean is assumed."""
        self.is_tried = self.torch_mean is not None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)  # moves its buffers, such as class weights
        if self.torch_mean:
            return self.torch_mean.terms(outputs, targets)
        value, count = self._compute(self.function, outputs, targets), self.division.count
        if count is not None:
            weight = sum_counts(count, targets)
            # A part of weight 0 may have no loss (0 / 0): a zero with a gradient takes its place.
            return value.mean() * weight.to(value) if weight > 0 else (outputs * 0).sum()
        return value if value.ndim or self.division.summed else value.expand(len(targets))

    def weights(self, targets: Tensor) -> Tensor:
        """The weights of samples in the loss of their batch: one for each, shape (N,), or one for all."""
        if self.division.count is None:
            return torch.ones(len(targets), device=targets.device)
        return sum_counts(self.division.count, targets).to(targets.device)

    def note(self) -> str:
        """A note on how batches are split; empty if there is nothing unusual."""
        if self.division.obstacle:
            return f"{self.division.obstacle}, so one process computes every batch as a whole; {SPLITTABLE}"
        if self.division.summed:
            return f"{self.name} is a sum: validation/loss is that over all validation samples"
        return ""

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
        """Call the loss once as a check; raises SpecError if it raises, or its result cannot be a loss."""
        call = f"{self.name}, called with outputs {_shape(outputs)} and targets {_shape(targets)}, raised"
        with blame_user_code(lambda error, action: self.refuse(f"{call} {error}", "", action)):
            self(outputs, targets)

    def divide(self, outputs: Tensor, targets: Tensor) -> None:
        """Find out, unless it is known, how the loss of a batch is combined from those of its parts.

        `outputs` are an example, of one or more samples; the labels in `targets` should differ.

        Raises:
            SpecError: if `weight_of` is not what the loss divides by.
        """
        if self.is_tried:
            return
        self.is_tried = True
        count = max(MIN_TRIAL_SAMPLES, min(len(targets), MAX_TRIAL_NUMBERS // max(1, outputs[0].numel())))
        targets = targets.cpu()[torch.arange(count) * max(1, len(targets) // count) % len(targets)]
        division = None
        # On the CPU, since invented outputs may be invalid, and an invalid index makes a GPU unusable.
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            for rows in invent_outputs(outputs.detach().cpu().clone(), count):
                trial = partial(self._compute_trial, rows, targets)
                division = division or try_division(
                    trial, count, self.name, self.refuse, self.weight_of, targets.__getitem__
                )
        obstacle = "" if self.weight_of else f"{self.name} cannot be computed for samples that are tried"
        self.division = division or Division(self.weight_of, obstacle=obstacle)

    def _compute_trial(self, outputs: Tensor, targets: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """The mean loss of some samples, and its gradient."""
        rows = outputs[part].clone().requires_grad_()
        # A loss may change its own state, and its arguments in place.
        function = copy.deepcopy(self.function)
        value = self._compute(function, rows.clone(), targets[part].clone()).mean()
        slope = torch.zeros_like(outputs)
        (slope[part],) = torch.autograd.grad(value, rows)
        return value.detach(), slope


def load(job: CustomJob) -> CustomTerms | None:
    """The loss in the job's file; None if the job has none.

    Raises:
        SpecError: if the user's code raises, or returns no loss.
    """
    spec, key = job.train.loss, ("train", "loss", "file")
    if not isinstance(spec, CustomLossSpec):
        return None

    def refuse(description: str, possible: str, action: str) -> SpecError:
        return SpecError([Problem(job.document.place(key), ".".join(key), description, possible, action)])

    name = f"{spec.factory}() in {spec.file}"
    with blame_user_code(lambda error, action: refuse(f"{name} raised {error}", "", action)):
        code = user_code.open_code(job.folder)
        arguments = code.with_copies(spec.arguments)
        with code_files.record_opened() as opened:
            user_loss, _ = code.call(spec.file, spec.factory, arguments)
        code.keep_opened(opened)
        weight_of: Any = code.function(spec.file, spec.weight_of, arguments) if spec.weight_of else None
    return CustomTerms(user_loss, f"the loss of {name}", refuse, weight_of)


def _shape(values: Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
