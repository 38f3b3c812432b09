"""Provides a user's samples from arrays, in memory or memory-mapped, or from a dataset, read item by item."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from drivetrain.data import stateless_random
from drivetrain.data.custom.sample_forms import FORMS as FORMS
from drivetrain.data.custom.sample_forms import ITEM, OWN_LOOP, split_item
from drivetrain.data.custom.sample_forms import describe as describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError

Collate = Callable[[list[Any]], Any]
"""Function that makes a batch from a list of items."""
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
        """Return the raw inputs of these samples."""
        index = torch.from_numpy(ids)
        rows = index if self.rows is None else self.rows[index]
        return tuple(x.index_select(0, rows) for x in self.inputs)

    def title(self, index: int) -> str:
        """Return the number of the sample."""
        return f"sample {index}"

    def first_targets(self) -> Tensor:
        """Return the targets as the user gave them; for arrays, all targets."""
        assert self.raw_targets is not None
        return self.raw_targets if self.rows is None else self.raw_targets[self.rows]

    all_targets = first_targets

    def digest(self) -> str:
        """Compute the SHA-256 of the samples, inputs and targets, in order."""
        sha256 = hashlib.sha256()
        for tensor in (*self.inputs, *([] if self.raw_targets is None else [self.raw_targets])):
            sha256.update(f"{tensor.dtype} {tuple(tensor.shape[1:])}".encode())
            step = max(1, HASHED_BYTES // max(1, tensor[0].nbytes))
            for start in range(0, len(self), step):
                rows = slice(start, start + step) if self.rows is None else self.rows[start : start + step]
                sha256.update(tensor[rows].contiguous().flatten().view(torch.uint8).numpy().data)
        return sha256.hexdigest()

    def set_target_form(self, convert: Callable[[Tensor], Tensor], highest: int | None) -> None:
        """Set the conversion of targets, and the highest valid class index."""
        self.targets = {} if self.raw_targets is None else {"": convert(self.first_targets())}


def build_array_split(values: tuple[object, ...], name: str, inputs: int | None, rows: Tensor | None) -> ArraySplit:
    """Build a split from arrays. The last array has the targets, unless there are only the `inputs` input arrays.

    Raises:
        DataError: if they are not arrays of numbers with the same number of samples, or there is no sample.
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
    """Convert anything that NumPy accepts as an array of numbers."""
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
        # torch has no negative strides, as `array[::-1]` has.
        reverses = any(stride < 0 for stride in array.strides)
        native = array.astype(array.dtype.newbyteorder("="), order="C" if reverses else "K", copy=reverses)
        return torch.from_numpy(native)


def no_samples_error(name: str) -> DataError:
    """Return the error for data without a sample."""
    return DataError(f"{name}: has no samples", "at least one sample", "check how the samples are selected")


def keep_targets(targets: Tensor) -> Tensor:
    """Return the targets unchanged."""
    return targets


class ItemSplit:
    """Samples of a map-style dataset, collated per batch.

    Random numbers that the dataset takes from torch, NumPy or `random` depend only on the run's seed, the epoch and the
    sample, so neither the batch size nor the number of processes, workers or resumes changes them. Validation
    samples get the same random numbers in every epoch.
    """

    def __init__(
        self, name: str, dataset: Any, seed: int, inputs: int | None = None, collate: Collate = default_collate
    ) -> None:
        """Wrap a dataset of the user; `inputs` is the number of inputs if items may have no target, else None."""
        self.name, self.dataset, self.seed, self.inputs, self.collate = name, dataset, seed, inputs, collate
        self.epoch = -1
        """Epoch of the random numbers, from 0; -1 if the samples are not for training."""
        self.convert: Callable[[Tensor], Tensor] = keep_targets
        self.highest: int | None = None
        self._targets: Targets | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def at_epoch(self, epoch: int) -> ItemSplit:
        """Return the samples with the random numbers of this epoch, counted from 0."""
        split = copy.copy(self)
        split.epoch = epoch
        return split

    def gather(self, ids: Ids) -> Inputs:
        """Return the inputs of these samples."""
        return self._collate(ids)[0]

    def title(self, index: int) -> str:
        """Return the number of the sample."""
        return f"sample {index}"

    def samples(self, ids: Ids) -> tuple[Inputs, Targets]:
        """Return inputs and targets of these samples; each item is read once.

        Raises:
            DataError: if the dataset raises, or its items cannot be collated.
        """
        return self.convert_batch(*self._collate(ids))

    def convert_batch(self, inputs: Inputs, raw: Tensor | None) -> tuple[Inputs, Targets]:
        """Check the targets of a collated batch and convert them; returns inputs and targets."""
        if raw is None:
            return inputs, {}
        if self.highest is not None and not bool(((raw >= 0) & (raw <= self.highest)).all()):
            wrong = raw.max() if raw.max() > self.highest else raw.min()
            raise DataError(
                f"{self.name}: a target is {wrong:g}",
                f"targets from 0 to {self.highest}, as at the start",
                "fix the dataset, or set data.names and data.targets",
            )
        return inputs, {"": self.convert(raw)}

    @property
    def targets(self) -> Targets:
        """All targets. Unless the dataset has a `targets` attribute, the first call reads every item."""
        if self._targets is None:
            self._targets = {"": self.convert(self.all_targets())}
        return self._targets

    @targets.setter
    def targets(self, value: Targets) -> None:
        self._targets = value

    def first_targets(self) -> Tensor:
        """Return the targets of the first samples as the user gave them."""
        targets = self._collate(np.arange(min(8, len(self))))[1]
        assert targets is not None
        return targets

    def all_targets(self) -> Tensor:
        """Read all targets as the user gave them, from the dataset's `targets` attribute or else item by item."""
        listed = self._read_targets_attribute()
        if listed is not None:
            return listed
        values = torch.empty(0)
        for start in range(0, len(self), 1024):
            targets = self._collate(np.arange(start, min(start + 1024, len(self))))[1]
            assert targets is not None
            if not start or (targets.dtype, targets.shape[1:]) != (values.dtype, values.shape[1:]):
                joined = torch.cat([values[:start], targets]) if start else targets
                # One block for all: small blocks among the freed items would keep their pages from the system.
                values = joined.new_empty((len(self), *joined.shape[1:]))
                values[: len(joined)] = joined
            values[start : start + len(targets)] = targets
        return values

    def set_target_form(self, convert: Callable[[Tensor], Tensor], highest: int | None) -> None:
        """Set the conversion of targets, and the highest valid class index."""
        self.convert, self.highest = convert, highest

    def _read_targets_attribute(self) -> Tensor | None:
        """Read the `targets` attribute, as in torchvision's datasets, if it agrees with the items."""
        try:
            all_targets = torch.as_tensor(self.dataset.targets)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return None
        ids = np.unique(np.array([0, len(self) // 2, len(self) - 1]))
        item_targets = self._collate(ids)[1]
        if (
            item_targets is None
            or len(all_targets) != len(self)
            or not torch.equal(all_targets[torch.from_numpy(ids)].to(item_targets), item_targets)
        ):
            return None
        return all_targets

    def _collate(self, ids: Ids) -> tuple[Inputs, Tensor | None]:
        """Return inputs and raw targets of these samples; ids of repetitions are beyond the size."""
        return self.collate_items(self.items(ids), ids % len(self))

    def items(self, ids: Ids) -> list[Any]:
        """Return the dataset's items of these samples; raises DataError if the dataset raises."""
        return [self._read_item(*divmod(number, len(self))) for number in ids.tolist()]

    def _read_item(self, repetition: int, index: int) -> Any:
        # Other samples have the same random numbers in every run, so that `evaluate` sees the same samples as the run.
        key = (self.seed, "item", self.epoch) if self.epoch >= 0 else (0, "item")
        stateless_random.seed_globally(stateless_random.derive_key(*key, index, repetition))
        with blame_user_code(DataError, f"{self.name}: sample {index} raised"):
            return self.dataset[index]

    def collate_items(self, items: list[Any], ids: Ids) -> tuple[Inputs, Tensor | None]:
        """Collate items to inputs and raw targets; raises DataError if they cannot be put into a batch."""
        batch = self._call_collate(items, ids)
        if self._lacks_target(items[0]):
            batch = (batch, None)
        is_complete = isinstance(batch, tuple | list) and len(batch) > 1
        inputs, targets = split_item(batch) if is_complete else ((), batch)
        wrong = next((x for x in (*inputs, targets) if x is not None and not isinstance(x, Tensor)), None)
        if not is_complete or wrong is not None:
            if self.collate is default_collate:
                raise self._collate_error(items, ids, "no numbers")
            text = f"{self.name}: collate_fn gives {describe(wrong if is_complete else batch)}"
            raise DataError(text, ITEM, f"return tensors; {OWN_LOOP}")
        sizes = {len(value) if value.ndim else 0 for value in (*inputs, targets) if value is not None}
        if self.collate is not default_collate and sizes != {len(items)}:
            rows = ", ".join(map(str, sorted(sizes)))
            raise DataError(
                f"{self.name}: collate_fn makes tensors of {rows} rows of {len(items)} samples",
                "one row for each sample in every tensor, so that a batch can be split",
                f"stack the samples along the first dimension; {OWN_LOOP}",
            )
        return inputs, targets

    def _call_collate(self, items: list[Any], ids: Ids) -> Any:
        """Make a batch from the items, with the user's collate function or torch's."""
        if self.collate is not default_collate:
            with blame_user_code(DataError, f"{self.name}: collate_fn raised"):
                return self.collate(items)
        try:
            return default_collate(items)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise self._collate_error(items, ids, str(error)) from error

    def _lacks_target(self, item: Any) -> bool:
        """Return whether an item has no target."""
        if self.inputs is None:
            return False
        if not isinstance(item, tuple | list) or len(item) < 2:
            return True
        # An item with as many values as the network has inputs has no target, unless its first value holds all inputs.
        return len(item) == self.inputs and not isinstance(item[0], tuple | list)

    def _collate_error(self, items: list[Any], ids: Ids, reason: str) -> DataError:
        """Return the error for items that cannot be collated; it names the first item that is wrong or differs."""
        parts = []
        for index, item in zip(ids.tolist(), items, strict=True):
            pair = (item, 0) if self._lacks_target(item) else item
            if not isinstance(pair, tuple | list) or len(pair) < 2:
                return DataError(
                    f"{self.name}: sample {index} is {describe(item)}", ITEM, f"return inputs and target; {OWN_LOOP}"
                )
            inputs, target = split_item(pair)
            parts.append([*inputs, target])
            for position, value in enumerate(parts[-1]):
                if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
                    is_target = position == len(inputs)
                    advice = (
                        "put its numbers into one tensor, which your loss takes apart" if is_target else "convert it"
                    )
                    return DataError(
                        f"{self.name}: {'the target' if is_target else 'an input'} of sample {index} is {describe(value)}",
                        ITEM,
                        f"{advice} in the dataset; {OWN_LOOP}",
                    )
        shapes = [", ".join(str(tuple(np.shape(value))) for value in values) for values in parts]
        differing = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if differing is None:
            return DataError(f"{self.name}: samples cannot be put into a batch: {reason}", ITEM, "fix the dataset")
        return DataError(
            f"{self.name}: samples {ids[0]} and {ids[differing]} differ in shape: {shapes[0]} and {shapes[differing]}",
            "inputs and targets of one shape",
            f"pad or crop them in the dataset; {OWN_LOOP}",
        )


Items = ArraySplit | ItemSplit


def open_split(
    value: object, name: str, seed: int, inputs: int | None = None, collate: Collate = default_collate
) -> Items:
    """Wrap data of the user, in one of `FORMS`, as a split; `inputs` is as in `ItemSplit`.

    With a `collate` other than torch's, a TensorDataset is read item by item.

    Raises:
        DataError: if it has none of the forms, or is empty.
    """
    if isinstance(value, ItemSplit):
        return value
    unwrapped, rows = _unwrap(value)
    if isinstance(unwrapped, TensorDataset) and collate is default_collate:
        return build_array_split(unwrapped.tensors, name, inputs, rows)
    if isinstance(value, Tensor | np.ndarray) and inputs == 1:
        value = (value,)
    if isinstance(value, tuple):
        flat = (*value[0], *value[1:]) if value and isinstance(value[0], tuple | list) else value
        return build_array_split(flat, name, inputs, None)
    if isinstance(value, IterableDataset | DataLoader) or not (
        hasattr(value, "__getitem__") and hasattr(value, "__len__")
    ):
        hint = "pass its dataset" if isinstance(value, DataLoader) else "write __len__ and __getitem__"
        raise DataError(f"{name}: is {describe(value)}, which has no __getitem__ or no __len__", FORMS, hint)
    with blame_user_code(DataError, f"{name}: len() raised", FORMS):
        size = len(value)
    if not size:
        raise no_samples_error(name)
    return ItemSplit(name, value, seed, inputs, collate)


def _unwrap(value: object) -> tuple[Any, Tensor | None]:
    """Return the dataset inside torch's Subsets, as `random_split` makes them, and the indices of its samples."""
    rows = None
    while isinstance(value, Subset):
        subset_rows = torch.as_tensor(value.indices, dtype=torch.int64)
        rows = subset_rows if rows is None else subset_rows[rows]
        value = value.dataset
    return value, rows
