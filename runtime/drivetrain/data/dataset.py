"""The dataset of a job, in the form that training, evaluation and prediction share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch

from drivetrain.data import host_lengths
from drivetrain.data.host_lengths import Lengths
from drivetrain.data.stateless_random import Ids
from drivetrain.data.to_device import onto
from drivetrain.system import torch_errors

if TYPE_CHECKING:
    from drivetrain.data.loader.orders import Order
    from drivetrain.data.streaming.fetch_counts import FetchCounts

Inputs = tuple[torch.Tensor, ...]
Targets = dict[str, torch.Tensor]
NO_LABEL = -1
"""Class index of a sample that has no label for a head; it counts for the other heads alone."""


@dataclass(frozen=True)
class Head:
    """One output of the network: its classes, or the names and scale of its numbers."""

    name: str
    """Empty if the network has a single output."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the network's outputs; empty for regression."""
    several: bool = False
    """Whether a sample can have several classes (multi-label)."""
    columns: tuple[str, ...] = ()
    """Names of the numbers to predict; empty for classification."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Scale of the numbers: the network predicts (value - mean) / std."""
    weight: float = 1.0
    """Weight of this head in the loss."""
    class_weights: str | Mapping[str, float] | None = None
    """`none`, `balanced`, or weights by class; None to follow the job's `train:`."""
    label_smoothing: float | None = None
    """None to follow the job's loss."""
    partial: bool = False
    """Whether some samples have no label for this head."""
    temperature: float = 1.0
    """What outputs are divided by before they become probabilities; fitted after a training."""

    @property
    def outputs(self) -> int:
        """The number of network outputs of this head."""
        return len(self.classes) or len(self.columns)

    @property
    def counted(self) -> str:
        """How many outputs of which kind: `3 classes`, `5 labels`, `2 numbers`."""
        return f"{self.outputs} {'labels' if self.several else 'classes' if self.classes else 'numbers'}"


def mark_partial(heads: Mapping[str, Head], targets: Sequence[Mapping[str, Any]]) -> dict[str, Head]:
    """The heads, each with whether one of these targets lacks its label."""
    return {
        name: replace(
            head, partial=any(bool((part[name] == NO_LABEL).any()) for part in targets if part[name].ndim == 1)
        )
        for name, head in heads.items()
    }


def head(row: Mapping[str, object]) -> Head:
    """Rebuild a head from `dataclasses.asdict`, as read back from JSON."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Head(**values)


@dataclass(frozen=True)
class InputRecord:
    """The preprocessing and heads to read the data with: those the run was started with, or those of an earlier run."""

    preprocessing: Mapping[str, Any]
    """`Dataset.preprocessing`, as read back from JSON."""
    heads: Mapping[str, Head]
    same_data: bool = True
    """Whether they come from this very data. False: from the data of the run that this one starts from, whose classes
    may differ, and of which only the scale of the same numbers is used.
    """

    def head(self, name: str, compute: Callable[[], Head]) -> Head:
        """The head of this name; `compute` computes it from the data."""
        if self.same_data:
            return self.heads[name]
        computed, stored = compute(), self.heads.get(name)
        same = stored is not None and stored.columns == computed.columns
        return replace(computed, mean=stored.mean, std=stored.std) if stored and same else computed


@dataclass
class Batch:
    """Some samples, preprocessed for the network.

    `inputs` are the positional arguments of the network, each of shape (N, ...). `targets` hold, by head name, class
    indices (N,) int64, of which NO_LABEL is none, class probabilities (N, classes) float, or scaled numbers (N, columns) float.
    """

    ids: Ids
    inputs: Inputs
    targets: Targets
    lengths: Lengths | None = None
    """Real tokens of each sample, on the host; the last input is then their mask (N, tokens), real tokens first."""

    def __post_init__(self) -> None:
        if self.lengths is not None:
            host_lengths.note(self.inputs[-1], self.lengths)

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """Move the batch to `device`; the copy does not block if memory is pinned."""
        return replace(
            self,
            inputs=tuple(x.to(device, non_blocking=True) for x in self.inputs),
            targets={name: y.to(device, non_blocking=True) for name, y in self.targets.items()},
        )

    def pin_memory(self) -> Batch:
        """The batch in pinned memory, or as it is where no more can be pinned; torch's DataLoader calls this by name."""
        try:
            return replace(
                self,
                inputs=tuple(x.pin_memory() for x in self.inputs),
                targets={name: y.pin_memory() for name, y in self.targets.items()},
            )
        except RuntimeError as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            return self

    def take_rows(self, rows: Ids) -> Batch:
        """A batch of the samples at these indices."""
        return Batch(
            self.ids[rows],
            tuple(x[onto(x.device, rows)] for x in self.inputs),
            {name: y[onto(y.device, rows)] for name, y in self.targets.items()},
            None if self.lengths is None else self.lengths[rows],
        )

    def between(self, start: int, end: int) -> Batch:
        """A batch of the samples from `start` to `end`."""
        part = slice(start, end)
        return Batch(
            self.ids[part],
            tuple(x[part] for x in self.inputs),
            {name: y[part] for name, y in self.targets.items()},
            None if self.lengths is None else self.lengths[part],
        )

    def split(self, size: int) -> Iterator[Batch]:
        """Micro-batches of at most `size` samples, in order."""
        if size >= len(self):
            yield self
            return
        for start in range(0, len(self), size):
            yield self.between(start, start + size)

    def split_evenly(self, count: int) -> Iterator[Batch]:
        """So many micro-batches in order, whose sizes differ by at most one."""
        bounds = [len(self) * number // count for number in range(count + 1)]
        return (self.between(start, end) for start, end in pairwise(bounds))


class Split(Protocol):
    """Training or validation samples, numbered from 0."""

    targets: Targets
    """All targets by head, each of shape (size, ...)."""

    def __len__(self) -> int: ...

    def gather(self, ids: Ids) -> Inputs:
        """Raw inputs of these samples; may run in a worker process."""
        ...

    def title(self, index: int) -> str:
        """A name for one sample in lists: a path, a row, or the text itself."""
        ...


@runtime_checkable
class Masked(Protocol):
    """A split whose samples may have different lengths."""

    @property
    def masked(self) -> bool:
        """Whether the last input is a mask (N, tokens) of real tokens, which come first."""
        ...


@runtime_checkable
class JointTargets(Protocol):
    """A split that must read a sample to get its target; `targets` then reads all samples."""

    def samples(self, ids: Ids) -> tuple[Inputs, Targets]:
        """Raw inputs and targets of these samples; may run in a worker process.

        Where a sampler draws one several times, `id + n * size` asks for its n-th repetition, with other random numbers.
        """
        ...


@runtime_checkable
class FetchesAhead(Protocol):
    """A split whose samples are fetched while it is read."""

    def fetching(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """Fetch what these batches need, in their order; what is returned is told how many were used."""
        ...


@runtime_checkable
class ChangesByEpoch(Protocol):
    """A split whose inputs are not the same in every epoch."""

    def at(self, epoch: int) -> Split:
        """The samples as they are in this epoch, counted from 0."""
        ...


class Preprocessing(Protocol):
    """Converts raw inputs to network inputs, on their device; augments only if an epoch is given."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs: ...


def as_it_is(inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
    """Return the inputs unchanged, for data that needs no preprocessing."""
    return inputs


@dataclass
class Dataset:
    """Training and validation data, with everything that prediction needs to know."""

    train: Split
    validation: Split
    heads: dict[str, Head]
    preprocessing: dict[str, Any]
    """What `predict` needs to preprocess new samples; plain JSON values, stored with the model."""
    prepare: Preprocessing = as_it_is
    mixable: bool = True
    """Whether the inputs are numbers that mixup can blend."""
    views: int = 0
    """After this many epochs the augmentation of the training samples repeats; 0 if it never does, or there is none."""
    decoded: bool = True
    """False if samples are decoded from files each time they are used."""
    test: NewSamples | None = None
    """Samples for a final test after the training, which nothing else uses."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the data: counts, skipped files, conversions."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts about the data, by key, as numbers and names. Code that decides, such as the report's advice, reads these
    and never the text of a note.
    """
    order: Order | None = None
    """Which training samples an epoch has, and in which order; None to shuffle all of them."""
    drop_last: bool = False
    """Whether an epoch leaves out a smaller last batch."""
    loss: Any = None
    """The user's loss, in place of the job's: CustomTerms, a module that needs this one."""
    files: dict[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)
    """Data files that the spec does not name itself, by the key that led to them. Paths are relative to the folder that
    the key names, or to the folder of the file that it names.
    """
    shards: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """Size and stamp of streamed shards, by the key that names them and by their names."""
    fetched: FetchCounts | None = field(default=None, repr=False, compare=False)
    """What is fetched from stores while the run trains; None if nothing is."""
    content: Callable[[], dict[str, str]] = dict
    """Digests of arrays that a Python program passed in, by split, or of what is known of the rows of shards, by spec key;
    computing them takes about a second per GB.
    """
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results computed once from the samples: activations of a frozen prefix, or a copy on the GPU."""


@dataclass
class NewSamples:
    """Samples that were not part of the training: for `predict` (no targets) and `evaluate --data` (with targets)."""

    split: Split
    prepare: Preprocessing
    notes: list[str] = field(default_factory=list)
    """What the user should know: skipped files or rows, and why."""
    row_numbers: Ids | None = None
    """Of each sample in the one table they come from, where the row below the header is 1; None for all others."""


def longest_samples(split: Split, count: int) -> Ids:
    """The ids of the longest samples; of the first ones if all have the same length."""
    lengths: Any = getattr(split, "lengths", None)
    ids: Ids = np.arange(len(split)) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
    return ids[:count]
