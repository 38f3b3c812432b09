"""Splits of user data given as arrays, in memory or memory-mapped."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError

# The forms of data, for messages.
FORMS = "a torch Dataset of (inputs, target), a TensorDataset, or a tuple of arrays of which the last holds the targets"
HASHED_BYTES = 1 << 24
"""Number of bytes that are hashed at a time."""


@dataclass
class ArraySplit:
    """Samples in arrays, in memory or memory-mapped."""

    name: str
    """Name for messages."""
    inputs: Inputs
    raw_targets: Tensor | None
    """Targets as the user gave them; None for new samples without targets."""
    rows: Tensor | None = None
    """Indices of the samples in this split; None for all."""
    targets: Targets = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs[0] if self.rows is None else self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Raw inputs of these samples."""
        index = torch.from_numpy(ids)
        rows = index if self.rows is None else self.rows[index]
        return tuple(x.index_select(0, rows) for x in self.inputs)

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.inputs = tuple(map(change, self.inputs))
        self.raw_targets = None if self.raw_targets is None else change(self.raw_targets)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """The number of the sample."""
        return f"sample {index}"

    def first_targets(self) -> Tensor:
        """Targets as the user gave them; here all of them."""
        assert self.raw_targets is not None
        return self.raw_targets if self.rows is None else self.raw_targets[self.rows]

    def all_targets(self) -> Tensor:
        """All targets as the user gave them."""
        return self.first_targets()

    def digest(self) -> str:
        """SHA-256 of the samples, inputs and targets, in order."""
        sha256 = hashlib.sha256()
        for tensor in (*self.inputs, *([] if self.raw_targets is None else [self.raw_targets])):
            sha256.update(f"{tensor.dtype} {tuple(tensor.shape[1:])}".encode())
            step = max(1, HASHED_BYTES // max(1, tensor[0].nbytes))
            for start in range(0, len(self), step):
                rows = slice(start, start + step) if self.rows is None else self.rows[start : start + step]
                sha256.update(tensor[rows].contiguous().flatten().view(torch.uint8).numpy().data)
        return sha256.hexdigest()

    def set_target_form(self, convert: Callable[[Tensor], Tensor], highest: int | None) -> None:
        """Set how targets are converted, and the highest valid class index."""
        self.targets = {} if self.raw_targets is None else {"": convert(self.first_targets())}


def build_array_split(values: tuple[object, ...], name: str, inputs: int | None, rows: Tensor | None) -> ArraySplit:
    """Build a split of arrays, of which the last has the targets; without targets there are `inputs` of them.

    Raises:
        DataError: if they are no arrays of numbers with the same number of samples, or there is no sample.
    """
    tensors = [_to_tensor(value, f"{name}: array {i}") for i, value in enumerate(values)]
    if len(tensors) < 2 and inputs is None:
        raise DataError(f"{name}: is a tuple of {len(tensors)}", FORMS, "return inputs and targets")
    if len({len(x) for x in tensors}) > 1:
        raise DataError(
            f"{name}: the arrays have {', '.join(f'{len(x):,}' for x in tensors)} samples",
            "one number of samples in all of them",
            "correct the lengths",
        )
    if not len(tensors[0] if rows is None else rows):
        raise no_samples_error(name)
    if inputs is not None and len(tensors) == inputs:
        return ArraySplit(name, tuple(tensors), None, rows)
    return ArraySplit(name, tuple(tensors[:-1]), tensors[-1], rows)


def _to_tensor(value: object, name: str) -> Tensor:
    """Convert an array to a tensor, in the same memory if possible; refuses NaN and infinite values."""
    tensor = value.detach().cpu() if isinstance(value, Tensor) else _convert_array(value, name)
    if tensor.is_complex():
        raise DataError(
            f"{name}: holds complex numbers", "real numbers", "pass the real and imaginary parts as two numbers"
        )
    if tensor.ndim == 0:
        raise DataError(f"{name}: is a single number", "one entry for each sample", "give an array")
    if tensor.is_floating_point() and tensor.numel() and not bool(torch.isfinite(torch.stack(tensor.aminmax())).all()):
        is_bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(dim=1)
        raise DataError(
            f"{name}: sample {int(is_bad.nonzero()[0])} has NaN or infinite values",
            "finite numbers",
            "remove these samples, or fill in the values",
        )
    return tensor


def _convert_array(value: object, name: str) -> Tensor:
    """Convert anything that NumPy takes for an array of numbers."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"{name}: cannot be converted to an array: {error}", FORMS, "give all its rows the same length"
        ) from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: is {describe(value)} with values of type {array.dtype}", "numbers", "convert it")
    with warnings.catch_warnings():
        # torch warns about read-only memory maps; nothing here writes.
        warnings.simplefilter("ignore")
        # torch has no negative strides, as those of `array[::-1]`.
        reverses = any(stride < 0 for stride in array.strides)
        native = array.astype(array.dtype.newbyteorder("="), order="C" if reverses else "K", copy=reverses)
        return torch.from_numpy(native)


def no_samples_error(name: str) -> DataError:
    """The error for data without a sample."""
    return DataError(f"{name}: has no samples", "at least one sample", "check how the samples are selected")


def describe(value: Any) -> str:
    """Describe a value for messages: `None`, `the class Net`, `an array of shape (3, 4)`, `a list of 3`, `a str`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Tensor | np.ndarray):
        return f"an array of shape {tuple(value.shape)}"
    count = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}{count}"
