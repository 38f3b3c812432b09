"""Converts the batches of a user's own loop for a training step, and computes the mean loss of its model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.custom.broadcasts import SAME_SHAPE, find_broadcast, watch_broadcasts
from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Batch, Inputs, Targets
from drivetrain.errors import DataError, SpecError

BATCH_FORMS = (
    "(inputs, targets), where inputs may be a tuple of arguments; a mapping, whose keys are arguments of the model; an object "
    "with to(), such as a batch of graphs; without loss= also a tensor or a tuple, the arguments of the model. Values are "
    "tensors, numbers, None, objects with to(), or nest these"
)
LOSS_FORMS = (
    "one number, or one for each sample, shape (N,): a tensor; of a model also an object with `loss`, or a mapping"
)


class WholeBatch(Batch):
    """A batch that is not split: nested tensors, objects such as graphs, or tensors with different numbers of rows."""

    def to(self, device: torch.device) -> WholeBatch:
        """Move all tensors, and all objects that have `to`, to `device`."""
        moved: dict[int, Any] = {}  # targets and inputs may be the same object

        def move(value: Any) -> Any:
            return moved.setdefault(id(value), change_leaves(lambda leaf: leaf.to(device), value))

        targets = {name: move(value) for name, value in self.targets.items()}
        return WholeBatch(self.ids, tuple(map(move, self.inputs)), targets)

    def between(self, start: int, end: int) -> Batch:
        """Return the batch itself."""
        return self


def change_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Change every object with a `to`, such as a tensor, in nested tuples, lists and mappings; keep other values."""
    if hasattr(value, "to"):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: change_leaves(change, member) for key, member in value.items()}
        if all(changed[key] is member for key, member in value.items()):
            return value
        copied: Any = copy.copy(value)  # of the same type, since outputs of transformers are also read by attribute
        copied.update(changed)
        return copied
    if isinstance(value, tuple | list):
        members = [change_leaves(change, member) for member in value]
        if all(new is old for new, old in zip(members, value, strict=True)):
            return value
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    return value


def is_sequence(value: object) -> bool:
    """Return whether a value is a plain tuple or list; torch's packed sequences are single objects."""
    return isinstance(value, tuple | list) and not hasattr(value, "to")


@dataclass
class UserBatches:
    """Converts batches of the user's loop to `Batch`, and back to the arguments of the user's model and loss.

    Args:
        model: the network.
        loss: a callable of (outputs, targets), or (outputs, batch) for a mapping or an object; None if the model
            returns the loss.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Any] | None
    argument_names: tuple[str, ...] = ()
    """Keys of the current batch, if it is a mapping."""
    has_called_loss: bool = False
    whole: str = ""
    """Reason why the current batch is a `WholeBatch`; empty if it can be split."""
    bound: set[tuple[Any, ...]] = field(default_factory=set)
    """Forms of batches that are known to match the model's arguments."""

    def list_untrained(self) -> list[str]:
        """List the names of trainable parameters of the loss that the model does not have."""
        owner = getattr(self.loss, "__self__", self.loss)  # of a method such as criterion.forward
        if not isinstance(owner, nn.Module):
            return []
        model_parameters = set(self.model.parameters())
        trainable = [(name, p) for name, p in owner.named_parameters() if p.requires_grad]
        return [name for name, p in trainable if p not in model_parameters]

    def to_batch(self, user_batch: Any) -> Batch:
        """Convert a batch of the user's loop; `whole` says afterwards whether it can be split.

        Raises:
            DataError: if the batch has none of the forms in BATCH_FORMS.
        """
        inputs, targets = self._split_batch(user_batch)
        values = (*inputs, *targets.values())
        wrong = next((value for value in values if not _is_usable(value)), None)
        tensors = [value for value in values if isinstance(value, Tensor) and value.ndim]
        if wrong is not None or not any(_holds_tensors(value) for value in values):
            description = describe(user_batch if wrong is None else wrong)
            raise DataError(f"the batch holds {description}", BATCH_FORMS, "convert it")
        self._check_arguments(inputs)
        rows = dict.fromkeys(len(value) for value in tensors)
        self.whole = ""
        if len(tensors) < len(values):
            unsplittable = next(value for value in values if not isinstance(value, Tensor) or not value.ndim)
            self.whole = f"the batch holds {describe(unsplittable)}, whose samples are not known"
        elif len(rows) > 1:
            self.whole = f"the tensors of the batch have {', '.join(map(str, rows))} rows"
        if self.whole:
            return WholeBatch(np.arange(1, dtype=np.int64), inputs, targets)
        return Batch(np.arange(len(tensors[0]), dtype=np.int64), inputs, targets)

    def _split_batch(self, user_batch: Any) -> tuple[tuple[Any, ...], Targets]:
        self.argument_names = ()
        if isinstance(user_batch, Mapping):
            self.argument_names = tuple(user_batch)
            values = tuple(user_batch.values())
            return values, dict(user_batch) if self.loss else {}
        if self.loss is None:
            return tuple(user_batch) if is_sequence(user_batch) else (user_batch,), {}
        if hasattr(user_batch, "to") and not isinstance(user_batch, Tensor):
            return (user_batch,), {"": user_batch}
        if not is_sequence(user_batch) or len(user_batch) < 2:
            raise DataError(f"the batch is {describe(user_batch)}", BATCH_FORMS, "return such a batch from your loader")
        *inputs, targets = user_batch
        if len(inputs) == 1 and is_sequence(inputs[0]):
            inputs = list(inputs[0])
        return tuple(inputs), {"": targets}

    def _check_arguments(self, inputs: tuple[Any, ...]) -> None:
        """Check that the inputs match the arguments of the model.

        Raises:
            DataError: if the model has other arguments.
        """
        form = (len(inputs), *self.argument_names)
        if form in self.bound:
            return
        try:
            signature = inspect.signature(self.model.forward)
        except (TypeError, ValueError):  # compiled code may have no signature
            return
        try:
            if self.argument_names:
                signature.bind(**dict(zip(self.argument_names, inputs, strict=True)))
            else:
                signature.bind(*inputs)
        except TypeError as error:
            contents = f"keys {', '.join(map(str, form[1:]))}" if self.argument_names else f"{form[0]} inputs"
            possible = f"the arguments of the model: {', '.join(signature.parameters)}"
            inputs_given = ", ".join(f"batch[{name!r}]" for name in self.argument_names if name in signature.parameters)
            if inputs_given and self.loss:
                action = f"give (inputs, targets), where targets may be the mapping: step((({inputs_given},), batch))"
            else:
                action = (
                    "give these arguments, or change forward(): **others takes all other keys, *others all other inputs"
                )
            raise DataError(
                f"the batch has {contents}, but forward() of the model: {error}", possible, action
            ) from None
        self.bound.add(form)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the model with the inputs of a batch, and return its outputs."""
        if self.argument_names:
            return self.model(**dict(zip(self.argument_names, inputs, strict=True)))
        return self.model(*inputs)

    def weighted_values(self, inputs: Inputs, targets: Targets) -> Any:
        """Return the argument of `weight_of` for samples: targets, or the inputs if the model computes the loss."""
        if self.loss is not None:
            return targets if self.argument_names else targets[""]
        if self.argument_names:
            return dict(zip(self.argument_names, inputs, strict=True))
        return inputs if len(inputs) > 1 else inputs[0]

    def mean_loss(self, outputs: Any, targets: Targets) -> Tensor:
        """Return the mean loss of some samples; a float32 scalar.

        Raises:
            SpecError: if the loss or the model raises, or returns something not in LOSS_FORMS.
        """
        name, loss = "the model", outputs
        if self.loss is None:
            loss = self._find_loss(outputs)
        else:
            name = "loss"
            with blame_user_code(SpecError, "loss raised"):
                loss = self._call_loss(_to_float32(outputs), targets if self.argument_names else targets[""])
        has_gradient = isinstance(loss, Tensor) and (loss.requires_grad or not torch.is_grad_enabled())
        if not isinstance(loss, Tensor) or loss.ndim > 1 or not has_gradient:
            description = describe(loss)
            if isinstance(loss, Tensor) and not loss.requires_grad:
                description += " without a gradient"
            raise SpecError(
                f"{name} gives {description} as the loss", LOSS_FORMS, "give loss=, or return the loss from the model"
            )
        return (loss if loss.dtype == torch.float64 else loss.float()).mean()

    def _call_loss(self, outputs: Any, targets: Any) -> Any:
        """Call the loss; the first call refuses a loss that combines every sample with every other one by mistake."""
        assert self.loss is not None
        if self.has_called_loss or self.whole or not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            return self.loss(outputs, targets)
        self.has_called_loss = True
        with watch_broadcasts(len(targets)) as broadcast_texts:
            loss = self.loss(outputs, targets)
        if broadcast_texts:
            # A constant in the loss may be as long as the batch by chance, so check with other numbers of rows.
            with torch.random.fork_rng(devices=[]):
                broadcast = find_broadcast(copy.deepcopy(self.loss), outputs.detach(), targets)
            if broadcast:
                raise SpecError(f"loss {broadcast}", *SAME_SHAPE)
        return loss

    def _find_loss(self, outputs: Any) -> Any:
        """Find the loss in the outputs of the model.

        Raises:
            SpecError: if the model returns several values and none is called `loss`.
        """
        if isinstance(outputs, Tensor):
            return outputs
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if loss is not None or not isinstance(outputs, Mapping | tuple | list):
            return loss
        if isinstance(outputs, Mapping):
            contents, total = f"a mapping of {', '.join(map(str, outputs))}", "sum(outputs.values())"
        else:
            numbers = [i for i, value in enumerate(outputs) if isinstance(value, Tensor) and value.ndim == 0]
            contents, total = describe(outputs), f"outputs[{numbers[0] if numbers else 0}]"
        targets = "batch" if self.argument_names else "targets"
        call = "" if self.argument_names else ", and step((batch, batch[-1])) with all arguments of the model in batch"
        raise SpecError(
            f"the model gives {contents}, and none of them is called loss",
            LOSS_FORMS,
            f"name the loss, as loss=lambda outputs, {targets}: {total}{call}",
        )


def _is_usable(value: object) -> bool:
    """Return whether a value can be given to a model: None, a number, or tensors and objects with `to`, also nested."""
    return value is None or isinstance(value, bool | int | float) or _holds_tensors(value)


def _holds_tensors(value: object) -> bool:
    leaves: list[object] = []

    def note(leaf: object) -> object:
        leaves.append(leaf)
        return leaf

    change_leaves(note, value)
    return bool(leaves)


def _to_float32(outputs: Any) -> Any:
    """Convert outputs of half precision to float32, because half precision has too few digits for a loss."""

    def change(value: Any) -> Any:
        is_half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if is_half else value

    return change_leaves(change, outputs)
