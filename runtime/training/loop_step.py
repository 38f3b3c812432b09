"""The training step in a loop of the user's own: batches as they come, accumulation, random numbers left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runtime.data.custom.arrays import described
from runtime.data.custom.loss_division import TOLERANCE, Count, Division, TorchMean, total, tried
from runtime.data.custom.user_errors import blamed
from runtime.data.dataset import Batch, Inputs, Targets
from runtime.errors import DataError, SpecError
from runtime.training.step import Step

BATCHES = (
    "(inputs, targets) with tensors, where inputs may be a tuple of them; a mapping of tensors, whose keys are arguments "
    "of the model; without loss= also a tensor or a tuple of tensors, the arguments of the model"
)
TRIED = 32
"""Samples that show how a loss is put together."""
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
    present: Inputs = ()
    """Of the present micro-batch."""

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

    def counted(self, inputs: Inputs, targets: Targets) -> Any:
        """What `weight_of` gets of some samples: what the loss gets beside the outputs, or what the model gets."""
        if self.loss is not None:
            return targets if self.keys else targets[""]
        return dict(zip(self.keys, inputs, strict=True)) if self.keys else inputs if len(inputs) > 1 else inputs[0]

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
        trained = isinstance(found, Tensor) and (found.requires_grad or not torch.is_grad_enabled())
        if not isinstance(found, Tensor) or found.ndim > 1 or not trained:
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
    """The objective of a step: the loss of its batch, divided by the batches of an update.

    How a batch follows from micro-batches is tried out with the first one that has to be split.
    """

    forms: Forms
    batches: int
    weight_of: Count | None = None
    """What the user says that samples count in the loss."""
    batch: Batch | None = None
    """The present one."""
    division: Division | None = None

    def __post_init__(self) -> None:
        if self.weight_of is None and (torchs := TorchMean.of(self.forms.loss)):
            self.division = Division(torchs.weights)

    @property
    def indivisible(self) -> str:
        """Why the present batch cannot be split; empty if it can.

        Raises:
            SpecError: if `weight_of` is not what the loss divides by.
        """
        if self.division is None:
            self.division = self._tried()
        return self.division.obstacle

    def _tried(self) -> Division:
        assert self.batch is not None
        some, model = self._masked(self.batch.between(0, min(TRIED, max(4, len(self.batch) // 2)))), self.forms.model
        before = {module: module.training for module in model.modules()}

        def trial(part: slice) -> tuple[Tensor]:
            rows = some.between(part.start, part.stop)
            return (self.forms.value(self.forms.forward(*rows.inputs), rows.targets),)

        def counted(part: slice) -> Any:
            rows = some.between(part.start, part.stop)
            return self.forms.counted(rows.inputs, rows.targets)

        digits = max((torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()), default=0.0)
        tolerance = max(TOLERANCE, 4 * digits)
        model.eval()  # dropout and BatchNorm make parts differ whatever the loss
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                division = tried(trial, len(some), "the loss", SpecError, self.weight_of, counted, tolerance)
        finally:
            for module, training in before.items():
                module.training = training
        obstacle = "" if self.weight_of else "the loss cannot be computed in evaluation mode"
        return division or Division(self.weight_of, obstacle=obstacle)

    def _masked(self, batch: Batch) -> Batch:
        """The batch with labels of its first sample left out where models with a loss of their own leave them out."""
        place = self.forms.keys.index("labels") if "labels" in self.forms.keys else -1
        if (
            self.forms.loss is not None
            or place < 0
            or batch.inputs[place].ndim < 2
            or batch.inputs[place].is_floating_point()
        ):
            return batch
        labels = batch.inputs[place].clone()
        labels[0, labels.shape[1] // 2 :] = -100
        return Batch(batch.ids, (*batch.inputs[:place], labels, *batch.inputs[place + 1 :]), batch.targets)

    def _share(self, targets: Targets) -> float:
        """What the present micro-batch counts in the loss of its batch."""
        forms, batch = self.forms, self.batch
        assert batch is not None
        if len(forms.present[0]) == len(batch) or (self.division and self.division.summed):
            return 1.0
        if self.division is None or self.division.count is None:
            return len(forms.present[0]) / len(batch)
        part = total(self.division.count, forms.counted(forms.present, targets))
        return float(part / total(self.division.count, forms.counted(batch.inputs, batch.targets)))

    def denominators(self, targets: Targets) -> dict[str, Tensor]:
        """None: the size of the batch is known."""
        return {}

    def __call__(self, outputs: Any, targets: Targets, over: Mapping[str, Tensor]) -> Tensor:
        """The share of a micro-batch in the loss of an update; a scalar."""
        found = self.forms.value(outputs, targets)
        share = self._share(targets) / self.batches
        if not share:  # what counts nothing may have no loss: 0 / 0
            return 0 * next(p for p in self.forms.model.parameters() if p.requires_grad).sum()
        return found if share == 1 else found * share


@dataclass(frozen=True, eq=False)
class LoopStep(Step):
    """A step that leaves the random numbers to the user's loop; only a second try gets those of the first."""

    forms: Forms | None = None
    random: list[tuple[Tensor, Tensor | None, Any, Any]] = field(default_factory=list)
    """State of torch's generators for CPU and GPU, NumPy's and Python's when the present batch was first tried."""

    def outputs(self, inputs: Inputs) -> Any:
        """The network's outputs, with this step's precision and memory format."""
        assert self.forms is not None
        self.forms.present = inputs
        return super().outputs(inputs)

    def _seed(self, seed: int) -> None:
        on_gpu = self.device.type == "cuda"
        if not self.random:
            gpu = torch.cuda.get_rng_state(self.device) if on_gpu else None
            self.random.append((torch.get_rng_state(), gpu, np.random.get_state(), random.getstate()))
            return
        cpu, gpu, numpys, pythons = self.random[0]
        torch.set_rng_state(cpu)
        np.random.set_state(numpys)
        random.setstate(pythons)
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
