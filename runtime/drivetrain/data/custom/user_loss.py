"""The user's loss as terms and weights, so that it is exact when a batch is split into micro-batches."""

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
    total,
    try_division,
)
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.errors import Problem, SpecError
from drivetrain.job.custom import CustomJob, CustomLossSpec

POSSIBLE = "one term per sample, shape (N,), or their mean as a scalar"


class CustomTerms:
    """Wraps a callable (outputs, targets) to return terms whose sum over a batch, divided by that of `weights`, is its loss.

    Args:
        function: the user's.
        name: for messages.
        refuse: makes the error.
        weight_of: of targets: what their samples count; None to find out.

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
        self.apart = None if weight_of else TorchMean.of(function)
        self.division = Division(self.apart.weights if self.apart else None)
        """How the loss of a batch follows from those of its parts; until that is tried, as the mean."""
        self.is_tried = self.apart is not None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)  # moves its buffers, such as class weights
        if self.apart:
            return self.apart.terms(outputs, targets)
        value, count = self._value(self.function, outputs, targets), self.division.count
        if count is not None:
            weight = total(count, targets)
            # A part that counts nothing may have no loss: 0 / 0.
            return value.mean() * weight.to(value) if weight > 0 else (outputs * 0).sum()
        return value if value.ndim or self.division.summed else value.expand(len(targets))

    def weights(self, targets: Tensor) -> Tensor:
        """What the samples count in the loss of their batch: one number each, shape (N,), or all together."""
        if self.division.count is None:
            return torch.ones(len(targets), device=targets.device)
        return total(self.division.count, targets).to(targets.device)

    def note(self) -> str:
        """What the user should know about batches that are split; empty if there is nothing."""
        if self.division.obstacle:
            return f"{self.division.obstacle}, so one process computes every batch as a whole; {SPLITTABLE}"
        return f"{self.name} is a sum: validation/loss is that over all validation samples" * self.division.summed

    def _value(self, function: Any, outputs: Tensor, targets: Tensor) -> Tensor:
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

    def tried(self, outputs: Tensor, targets: Tensor) -> None:
        """Call it once as a check.

        Raises:
            SpecError: if it raises, or its result cannot be a loss.
        """
        call = f"{self.name}, called with outputs {_shape(outputs)} and targets {_shape(targets)}, raised"
        with blame_user_code(lambda told, do: self.refuse(f"{call} {told}", "", do)):
            self(outputs, targets)

    def divide(self, outputs: Tensor, targets: Tensor) -> None:
        """Find out, unless it is known, how the loss of a batch follows from those of its parts.

        Args:
            outputs: of one or more samples, as an example.
            targets: of the samples to try, in which labels differ if they can.

        Raises:
            SpecError: if `weight_of` is not what the loss divides by.
        """
        if self.is_tried:
            return
        self.is_tried = True
        count = max(MIN_TRIAL_SAMPLES, min(len(targets), MAX_TRIAL_NUMBERS // max(1, outputs[0].numel())))
        targets = targets.cpu()[torch.arange(count) * max(1, len(targets) // count) % len(targets)]
        division = None
        # On the CPU: what is invented may be no valid input, which a GPU does not survive.
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            for rows in invent_outputs(outputs.detach().cpu().clone(), count):
                trial = partial(self._trial, rows, targets)
                division = division or try_division(
                    trial, count, self.name, self.refuse, self.weight_of, targets.__getitem__
                )
        obstacle = "" if self.weight_of else f"{self.name} cannot be computed for samples that are tried"
        self.division = division or Division(self.weight_of, obstacle=obstacle)

    def _trial(self, outputs: Tensor, targets: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """The mean loss of some samples, and its gradient."""
        rows = outputs[part].clone().requires_grad_()
        # A loss may change its state, and in place what it gets.
        function = copy.deepcopy(self.function)
        value = self._value(function, rows.clone(), targets[part].clone()).mean()
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
    with blame_user_code(lambda told, do: refuse(f"{name} raised {told}", "", do)):
        code = user_code.at(job.folder)
        arguments = code.with_copies(spec.arguments)
        with code_files.note_opened() as opened:
            user_loss, _ = code.call(spec.file, spec.factory, arguments)
        code.keep_opened(opened)
        weight_of: Any = code.function(spec.file, spec.weight_of, arguments) if spec.weight_of else None
    return CustomTerms(user_loss, f"the loss of {name}", refuse, weight_of)


def _shape(values: Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
