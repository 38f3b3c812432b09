"""Dataset: what a job's data turned out to be, in the form that training, evaluation and prediction share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch

from runtime.data.stateless_random import Ids
from runtime.data.to_device import onto

Inputs = tuple[torch.Tensor, ...]
Targets = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Head:
    """One output: its classes, or the names and scale of its numbers."""

    name: str
    """Empty for a single output."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the network's outputs; empty for regression."""
    several: bool = False
    """Whether a sample may have several of the classes."""
    columns: tuple[str, ...] = ()
    """Names of the numbers to predict; empty for classification."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Scale of the numbers: the network predicts (value - mean) / std."""
    weight: float = 1.0
    """Weight of this head in the loss."""
    class_weights: str | None = None
    """`none` or `balanced`; as the job's `train:` says if None."""
    label_smoothing: float | None = None
    """As the job's loss says if None."""

    @property
    def outputs(self) -> int:
        """Outputs of the network for this head."""
        return len(self.classes) or len(self.columns)


def head(row: Mapping[str, Any]) -> Head:
    """The head of which `dataclasses.asdict` made plain data, as JSON gives it back."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Head(**values)


@dataclass(frozen=True)
class InputRecord:
    """What a run has made of its data when it began; who reads that data again for the run makes the same of it."""

    preprocessing: Mapping[str, Any]
    """That of the `Dataset`, as JSON gives it back."""
    heads: Mapping[str, Head]


@dataclass
class Batch:
    """Some samples, prepared for the network.

    `inputs` are the positional arguments of the network, each of shape (N, ...). `targets` hold per head class
    indices of shape (N,) int64, class probabilities (N, classes) float, or scaled numbers (N, columns) float.
    """

    ids: Ids
    inputs: Inputs
    targets: Targets

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; from pinned memory the copy does not block."""
        return replace(
            self,
            inputs=tuple(x.to(device, non_blocking=True) for x in self.inputs),
            targets={name: y.to(device, non_blocking=True) for name, y in self.targets.items()},
        )

    def pin_memory(self) -> Batch:
        """The batch in memory that a GPU copies from by itself; torch's loader looks for this name."""
        return replace(
            self,
            inputs=tuple(x.pin_memory() for x in self.inputs),
            targets={name: y.pin_memory() for name, y in self.targets.items()},
        )

    def taken(self, rows: Ids) -> Batch:
        """Some of the samples, by their place in the batch."""
        return Batch(
            self.ids[rows],
            tuple(x[onto(x.device, rows)] for x in self.inputs),
            {name: y[onto(y.device, rows)] for name, y in self.targets.items()},
        )

    def between(self, start: int, end: int) -> Batch:
        """The samples at these places."""
        part = slice(start, end)
        return Batch(
            self.ids[part], tuple(x[part] for x in self.inputs), {name: y[part] for name, y in self.targets.items()}
        )

    def split(self, size: int) -> Iterator[Batch]:
        """Parts of at most `size` samples, in order."""
        if size >= len(self):
            yield self
            return
        for start in range(0, len(self), size):
            yield self.between(start, start + size)


class Split(Protocol):
    """Training or validation samples, numbered from 0."""

    targets: Targets
    """All targets, each of shape (size, ...)."""

    def __len__(self) -> int: ...

    def gather(self, ids: Ids) -> Inputs:
        """Raw inputs of these samples; may run in a worker process."""
        ...

    def title(self, index: int) -> str:
        """A name for one sample, for lists of mistakes: a path, a row, the text itself."""
        ...


@runtime_checkable
class JointTargets(Protocol):
    """A split that comes to the targets of a sample only by way of the sample; `targets` then reads all of them."""

    def samples(self, ids: Ids) -> tuple[Inputs, Targets]:
        """Raw inputs and targets of these samples; may run in a worker process."""
        ...


class Preprocessing(Protocol):
    """Raw inputs to network inputs, on the device; random only if an epoch is given."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs: ...


def as_it_is(inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
    """For data that is ready when it is gathered."""
    return inputs


@dataclass
class Dataset:
    """Training and validation data with everything that prediction needs to know."""

    train: Split
    validation: Split
    heads: dict[str, Head]
    preprocessing: dict[str, Any]
    """What `predict` needs to prepare new samples; plain JSON data, stored with the model."""
    prepare: Preprocessing = as_it_is
    mixable: bool = True
    """Whether inputs are numbers that mixup may blend."""
    decoded: bool = True
    """False where samples are decoded from files each time."""
    notes: list[str] = field(default_factory=list)
    """What a person should know about the data: counts, files left out, conversions."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    """The person's own loss, in place of the job's: (outputs, targets) -> one term per sample, shape (N,)."""
    files: dict[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)
    """Files beside those that the spec names, by the key that led to them; relative to the folder that it names, or
    to that of the file that it names."""
    content: Callable[[], dict[str, str]] = dict
    """Digests of what came as arrays from a program, by part; they take a second for each GB."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was made of the samples once: what a frozen prefix gave for them, or their copy on a GPU."""


@dataclass
class NewSamples:
    """Samples that were not there at training: for `predict` (no targets) and `evaluate --data` (with targets)."""

    split: Split
    prepare: Preprocessing
    notes: list[str] = field(default_factory=list)
    """What a person should know: files or rows left out, and why."""
