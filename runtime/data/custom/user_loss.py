"""The user's loss as per-sample terms, so that it is exact when a batch is split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from runtime.data.custom import user_code
from runtime.data.custom.arrays import described
from runtime.data.custom.user_errors import blamed
from runtime.errors import Problem, SpecError
from runtime.job.custom import CustomJob, CustomLossSpec

Refuse = Callable[[str, str, str], SpecError]
"""(given, possible, do) -> the error."""
POSSIBLE = "one term per sample, shape (N,), or their mean as a scalar"


class CustomTerms:
    """Wraps a callable (outputs, targets) to return one term per sample, shape (N,).

    A scalar result is taken for the mean over its samples, so that a micro-batch counts by its size.

    Args:
        function: the user's.
        name: for messages.
        refuse: makes the error.

    Raises:
        SpecError: if the result cannot be a loss.
    """

    def __init__(self, function: Any, name: str, refuse: Refuse) -> None:
        self.function, self.name, self.refuse = function, name, refuse
        if isinstance(function, type) or not callable(function):
            raise refuse(f"{name} is {described(function)}", "a callable of (outputs, targets)", "return a callable")
        if isinstance(function, nn.Module) and any(p.requires_grad for p in function.parameters()):
            raise refuse(
                f"{name} has trainable parameters, which the optimizer does not update",
                "parameters inside the network",
                "move them into the network",
            )

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)  # moves its buffers, such as class weights
        found = self.function(outputs, targets)
        if not isinstance(found, Tensor):
            raise self.refuse(f"{self.name} gives {described(found)}", POSSIBLE, "return a tensor")
        if found.ndim > 0 and found.shape != (len(targets),):
            raise self.refuse(
                f"{self.name} gives shape {tuple(found.shape)} for {len(targets)} samples",
                POSSIBLE,
                "average over every dimension except the samples",
            )
        if outputs.requires_grad and not found.requires_grad:
            raise self.refuse(
                f"{self.name} returns a value without a gradient",
                "a differentiable loss",
                "remove detach(), item() and argmax()",
            )
        return found.expand(len(targets)) if found.ndim == 0 else found

    def tried(self, outputs: Tensor, targets: Tensor) -> None:
        """Call it once as a check.

        Raises:
            SpecError: if it raises, or its result cannot be a loss.
        """
        given = f"{self.name}, called with outputs {_shape(outputs)} and targets {_shape(targets)}, raised"
        with blamed(lambda told, do: self.refuse(f"{given} {told}", "", do)):
            self(outputs, targets)


def load(job: CustomJob) -> CustomTerms | None:
    """The loss in the job's file; None if the job has none.

    Raises:
        SpecError: if the user's code raises, or returns no loss.
    """
    spec, key = job.train.loss, ("train", "loss", "file")
    if not isinstance(spec, CustomLossSpec):
        return None

    def refuse(given: str, possible: str, action: str) -> SpecError:
        return SpecError([Problem(job.document.place(key), ".".join(key), given, possible, action)])

    name = f"{spec.factory}() in {spec.file}"
    with blamed(lambda told, do: refuse(f"{name} raised {told}", "", do)):
        code = user_code.at(job.folder)
        made, _ = code.call(spec.file, spec.factory, code.with_copies(spec.arguments))
    return CustomTerms(made, f"the loss of {name}", refuse)


def _shape(values: Tensor) -> str:
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
