"""The training step in a loop of the user's own: batches as they come, accumulation, random numbers left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runtime.data.custom.arrays import described
from runtime.data.custom.user_errors import blamed
from runtime.data.dataset import Batch, Inputs, Targets
from runtime.errors import DataError, SpecError
from runtime.training.step import Step

BATCHES = (
    "(inputs, targets) with tensors, where inputs may be a tuple of them; a mapping of tensors, whose keys are arguments "
    "of the model; without loss= also a tensor or a tuple of tensors, the arguments of the model"
)
LOSSES = "one number, or one for each sample, shape (N,): a tensor; of a model also an object with `loss`, or a mapping"


@dataclass
class Forms:
    """Turns batches of the user into `Batch`, and back into what model and loss of the user get.

    Args:
        model: the network.
        loss: a callable of (outputs, targets), or (outputs, batch) for a mapping; None if the model returns the loss.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Any] | None
    keys: tuple[str, ...] = ()
    """Of the present batch, if it is a mapping."""
    present: int = 1
    """Samples of the present micro-batch."""

    def batch(self, given: Any) -> Batch:
        """The batch of the user as samples with a first dimension.

        Raises:
            DataError: if it has none of the forms.
        """
        inputs, targets = self._parts(given)
        tensors = (*inputs, *targets.values())
        wrong = next((value for value in tensors if not isinstance(value, Tensor) or not value.ndim), None)
        if wrong is not None or not inputs:
            found = described(given if wrong is None else wrong)
            raise DataError(f"the batch holds {found}", BATCHES, "convert it")
        if len({len(value) for value in tensors}) > 1:
            raise DataError(
                f"the tensors of the batch have {', '.join(str(len(value)) for value in tensors)} rows",
                "one row for each sample in all of them",
                "put the samples along the first dimension",
            )
        return Batch(np.arange(len(inputs[0]), dtype=np.int64), inputs, targets)

    def _parts(self, given: Any) -> tuple[tuple[Any, ...], Targets]:
        self.keys = ()
        if isinstance(given, Mapping):
            self.keys = tuple(given)
            values = tuple(given.values())
            return values, dict(given) if self.loss else {}
        if self.loss is None:
            return tuple(given) if isinstance(given, tuple | list) else (given,), {}
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise DataError(f"the batch is {described(given)}", BATCHES, "return such a batch from your loader")
        inputs = tuple(given[0]) if isinstance(given[0], tuple | list) else (given[0],)
        return inputs, {"": given[1]}

    def forward(self, *inputs: Tensor) -> Any:
        """The model, called with the inputs of a batch."""
        return self.model(**dict(zip(self.keys, inputs, strict=True))) if self.keys else self.model(*inputs)

    def value(self, outputs: Any, targets: Targets) -> Tensor:
        """The mean loss of some samples; a scalar.

        Raises:
            SpecError: if loss or model give something else, or raise.
        """
        name, found = "the model", outputs
        if self.loss is not None:
            name = "loss"
            with blamed(lambda told, do: SpecError(f"loss raised {told}", "", do)):
                found = self.loss(_whole(outputs), targets if self.keys else targets[""])
        elif isinstance(outputs, Mapping):
            found = outputs.get("loss")
        elif not isinstance(outputs, Tensor):
            found = getattr(outputs, "loss", None)
        if not isinstance(found, Tensor) or found.ndim > 1 or not found.requires_grad:
            what = described(found)
            if isinstance(found, Tensor) and not found.requires_grad:
                what += " without a gradient"
            raise SpecError(f"{name} gives {what} as the loss", LOSSES, "give loss=, or return the loss from the model")
        return found.float().mean()


def _whole(outputs: Any) -> Any:
    """Outputs in half precision as float32: it has too few digits for a loss."""
    if isinstance(outputs, Mapping):
        return {name: _whole(value) for name, value in outputs.items()}
    half = isinstance(outputs, Tensor) and outputs.dtype in (torch.float16, torch.bfloat16)
    return outputs.float() if half else outputs


@dataclass
class LoopLoss:
    """The objective of a step: the mean over its batch, divided by the batches of an update."""

    forms: Forms
    batches: int
    size: int = 1
    """Samples of the present batch."""

    def denominators(self, targets: Targets) -> dict[str, Tensor]:
        """None: the size of the batch is known."""
        return {}

    def __call__(self, outputs: Any, targets: Targets, over: Mapping[str, Tensor]) -> Tensor:
        """The share of a micro-batch in the loss of an update; a scalar."""
        found = self.forms.value(outputs, targets)
        share = self.forms.present / self.size / self.batches
        return found if share == 1 else found * share


@dataclass(frozen=True, eq=False)
class LoopStep(Step):
    """A step that leaves the random numbers to the user's loop; only a second try gets those of the first."""

    forms: Forms | None = None
    random: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    """State of the generators of CPU and GPU when the present batch was first tried."""

    def outputs(self, inputs: Inputs) -> Any:
        """The network's outputs, with this step's precision and memory format."""
        assert self.forms is not None
        self.forms.present = len(inputs[0])
        return super().outputs(inputs)

    def _seed(self, seed: int) -> None:
        on_gpu = self.device.type == "cuda"
        if not self.random:
            self.random.append((torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if on_gpu else None))
            return
        cpu, gpu = self.random[0]
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, self.device)


class Accumulation:
    """Gradients of several batches before one update.

    Args:
        parameters: of the optimizer.
        batches: of an update.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], batches: int) -> None:
        self.parameters, self.batches = parameters, batches
        self.held: list[Tensor | None] = []
        self.count = 0
        """Batches since the last update."""
        self.loss = 0.0

    def keep(self, loss: float) -> None:
        """Keep the gradients of a batch, and clear them, so that the next batch can be tried again alone."""
        self.add()
        self.held = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        self.count, self.loss = self.count + 1, self.loss + loss

    @torch.no_grad()
    def add(self) -> None:
        """Add what was kept to the gradients of the present batch."""
        for parameter, before in zip(self.parameters, self.held, strict=False):
            if before is not None:
                parameter.grad = before if parameter.grad is None else before + parameter.grad
        self.held = []

    def clear(self) -> None:
        """Begin again after an update."""
        self.held, self.count, self.loss = [], 0, 0.0
