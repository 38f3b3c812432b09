"""The training step in a loop of the user's own: batches as they come, accumulation, random numbers left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.custom.arrays import describe
from drivetrain.data.custom.loss_division import TOLERANCE, Count, Division, TorchMean, sum_counts, try_division
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Batch, Inputs, Targets
from drivetrain.errors import DataError, SpecError
from drivetrain.training.step import Step

BATCHES = (
    "(inputs, targets) with tensors, where inputs may be a tuple of them; a mapping of tensors, whose keys are arguments "
    "of the model; without loss= also a tensor or a tuple of tensors, the arguments of the model"
)
TRIAL_SAMPLES = 32
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

    def batch(self, user_batch: Any) -> Batch:
        """The batch of the user as samples with a first dimension.

        Raises:
            DataError: if it has none of the forms.
        """
        inputs, targets = self._parts(user_batch)
        tensors = (*inputs, *targets.values())
        wrong = next((value for value in tensors if not isinstance(value, Tensor) or not value.ndim), None)
        if wrong is not None or not inputs:
            description = describe(user_batch if wrong is None else wrong)
            raise DataError(f"the batch holds {description}", BATCHES, "convert it")
        if len({len(value) for value in tensors}) > 1:
            raise DataError(
                f"the tensors of the batch have {', '.join(str(len(value)) for value in tensors)} rows",
                "one row for each sample in all of them",
                "put the samples along the first dimension",
            )
        return Batch(np.arange(len(inputs[0]), dtype=np.int64), inputs, targets)

    def _parts(self, user_batch: Any) -> tuple[tuple[Any, ...], Targets]:
        self.keys = ()
        if isinstance(user_batch, Mapping):
            self.keys = tuple(user_batch)
            values = tuple(user_batch.values())
            return values, dict(user_batch) if self.loss else {}
        if self.loss is None:
            return tuple(user_batch) if isinstance(user_batch, tuple | list) else (user_batch,), {}
        if not isinstance(user_batch, tuple | list) or len(user_batch) != 2:
            raise DataError(f"the batch is {describe(user_batch)}", BATCHES, "return such a batch from your loader")
        inputs = tuple(user_batch[0]) if isinstance(user_batch[0], tuple | list) else (user_batch[0],)
        return inputs, {"": user_batch[1]}

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
        name, loss = "the model", outputs
        if self.loss is not None:
            name = "loss"
            with blame_user_code(lambda told, do: SpecError(f"loss raised {told}", "", do)):
                loss = self.loss(_whole(outputs), targets if self.keys else targets[""])
        elif isinstance(outputs, Mapping):
            loss = outputs.get("loss")
        elif not isinstance(outputs, Tensor):
            loss = getattr(outputs, "loss", None)
        trained = isinstance(loss, Tensor) and (loss.requires_grad or not torch.is_grad_enabled())
        if not isinstance(loss, Tensor) or loss.ndim > 1 or not trained:
            description = describe(loss)
            if isinstance(loss, Tensor) and not loss.requires_grad:
                description += " without a gradient"
            raise SpecError(
                f"{name} gives {description} as the loss", LOSSES, "give loss=, or return the loss from the model"
            )
        return loss.float().mean()


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
            self.division = self._try_division()
        return self.division.obstacle

    def _try_division(self) -> Division:
        assert self.batch is not None
        some, model = (
            self._mask_labels(self.batch.between(0, min(TRIAL_SAMPLES, max(4, len(self.batch) // 2)))),
            self.forms.model,
        )
        before = {module: module.training for module in model.modules()}

        def trial(part: slice) -> tuple[Tensor]:
            rows = some.between(part.start, part.stop)
            return (self.forms.value(self.forms.forward(*rows.inputs), rows.targets),)

        def count_part(part: slice) -> Any:
            rows = some.between(part.start, part.stop)
            return self.forms.counted(rows.inputs, rows.targets)

        digits = max((torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()), default=0.0)
        tolerance = max(TOLERANCE, 4 * digits)
        model.eval()  # dropout and BatchNorm make parts differ whatever the loss
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                division = try_division(trial, len(some), "the loss", SpecError, self.weight_of, count_part, tolerance)
        finally:
            for module, training in before.items():
                module.training = training
        obstacle = "" if self.weight_of else "the loss cannot be computed in evaluation mode"
        return division or Division(self.weight_of, obstacle=obstacle)

    def _mask_labels(self, batch: Batch) -> Batch:
        """The batch with labels of its first sample left out where models with a loss of their own leave them out."""
        label_index = self.forms.keys.index("labels") if "labels" in self.forms.keys else -1
        if (
            self.forms.loss is not None
            or label_index < 0
            or batch.inputs[label_index].ndim < 2
            or batch.inputs[label_index].is_floating_point()
        ):
            return batch
        labels = batch.inputs[label_index].clone()
        labels[0, labels.shape[1] // 2 :] = -100
        return Batch(batch.ids, (*batch.inputs[:label_index], labels, *batch.inputs[label_index + 1 :]), batch.targets)

    def _share(self, targets: Targets) -> float:
        """What the present micro-batch counts in the loss of its batch."""
        forms, batch = self.forms, self.batch
        assert batch is not None
        if len(forms.present[0]) == len(batch) or (self.division and self.division.summed):
            return 1.0
        if self.division is None or self.division.count is None:
            return len(forms.present[0]) / len(batch)
        part = sum_counts(self.division.count, forms.counted(forms.present, targets))
        return float(part / sum_counts(self.division.count, forms.counted(batch.inputs, batch.targets)))

    def denominators(self, targets: Targets) -> dict[str, Tensor]:
        """None: the size of the batch is known."""
        return {}

    def __call__(self, outputs: Any, targets: Targets, over: Mapping[str, Tensor]) -> Tensor:
        """The share of a micro-batch in the loss of an update; a scalar."""
        loss = self.forms.value(outputs, targets)
        share = self._share(targets) / self.batches
        if not share:  # what counts nothing may have no loss: 0 / 0
            return 0 * next(p for p in self.forms.model.parameters() if p.requires_grad).sum()
        return loss if share == 1 else loss * share


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

    def seed(self, seed: int) -> None:
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
