"""Dataset of a job, in the form shared by training, evaluation and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from drivetrain.data.stateless_random import Ids

if TYPE_CHECKING:  # `validate` reads tables without torch
    import torch
    from torch import Tensor

Inputs = tuple["torch.Tensor", ...]
Targets = dict[str, "torch.Tensor"]
Lengths = npt.NDArray[np.int64]
"""Number of real (not padding) tokens of each row of a mask, shape (N,); kept on the host, since reading the mask would
wait for the GPU.
"""
_LENGTHS = "host_lengths"
"""Attribute of a mask that holds its lengths."""
NO_LABEL = -1
"""Class index of a sample that has no label for a head; it counts only for the other heads."""


@dataclass(frozen=True)
class Head:
    """One output of the network: its classes, or the names and scale of its numbers."""

    name: str
    """Name of the output; empty if the network has a single output."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the network's outputs; empty for regression."""
    several: bool = False
    """Whether a sample can have several classes at once (multi-label classification)."""
    columns: tuple[str, ...] = ()
    """Names of the numbers to predict; empty for classification."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Scale of the numbers: the network predicts (value - mean) / std."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Range of the training numbers, without codes such as -9999."""
    weight: float = 1.0
    """Weight of this head in the loss."""
    class_weights: str | Mapping[str, float] | None = None
    """`none`, `balanced`, or weights by class; None to follow the job's `train:`."""
    label_smoothing: float | None = None
    """Label smoothing of this head; None to follow the job's loss."""
    partial: bool = False
    """Whether some samples have no label for this head."""
    temperature: float = 1.0
    """Divisor of outputs before they become probabilities; it is fitted after training."""
    thresholds: tuple[float, ...] = ()
    """Probability above which each label, or the second of two classes, is predicted; empty for 0.5."""

    @property
    def outputs(self) -> int:
        """Number of network outputs of this head."""
        return len(self.classes) or len(self.columns)

    @property
    def kind(self) -> str:
        """`classes`, `labels` or `numbers`; `other` for targets that only a loss of the user understands."""
        if self.several:
            return "labels"
        return "classes" if self.classes else "numbers" if self.columns else "other"

    @property
    def outputs_text(self) -> str:
        """Number of outputs and their kind, for messages: `3 classes`, `5 labels`, `2 numbers`."""
        return f"{self.outputs} {self.kind}"


def predict_classes(head: Head, outputs: torch.Tensor) -> torch.Tensor:
    """Predict classes from outputs (N, classes): indices (N,); for several labels, a mask (N, labels)."""
    if not head.several and not head.thresholds:
        return outputs.argmax(dim=1)
    import torch

    margins = outputs if head.several else outputs[:, 1:] - outputs[:, :1]
    thresholds = torch.tensor(head.thresholds or (0.5,), dtype=torch.float64)
    is_predicted = margins > (thresholds.logit() * head.temperature).to(margins)
    return is_predicted if head.several else is_predicted[:, 0].long()


def mark_partial(heads: Mapping[str, Head], targets: Sequence[Mapping[str, Any]]) -> dict[str, Head]:
    """Copy the heads and set `partial` to whether any class index (1-D target) of these splits is NO_LABEL."""
    marked = {}
    for name, head in heads.items():
        class_indices = [of_split[name] for of_split in targets if of_split[name].ndim == 1]
        marked[name] = replace(head, partial=any(bool((indices == NO_LABEL).any()) for indices in class_indices))
    return marked


def is_zero(numbers: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return a mask of numbers, in the units of the data, that are 0 within the precision of scaled float32."""
    return numbers.abs() < 1e-6 * (std + mean.abs())


def head_from_json(row: Mapping[str, object]) -> Head:
    """Rebuild a head from `dataclasses.asdict`, as read back from JSON."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Head(**values)


@dataclass(frozen=True)
class InputRecord:
    """Preprocessing and heads to read the data with, from the start of this run or from an earlier run."""

    preprocessing: Mapping[str, Any]
    """`Dataset.preprocessing`, as read back from JSON."""
    heads: Mapping[str, Head]
    same_data: bool = True
    """Whether they were computed from the data that is read now. If not, they come from an earlier run that this run
    starts from: its classes may differ, and only the scale of numbers with the same names is taken over.
    """

    def head(self, name: str, compute: Callable[[], Head]) -> Head:
        """Return the head to use for an output: the recorded head, or the head that `compute` makes from the data."""
        if self.same_data:
            return self.heads[name]
        computed, stored = compute(), self.heads.get(name)
        if stored is None or stored.columns != computed.columns:
            return computed
        return replace(computed, mean=stored.mean, std=stored.std, low=stored.low, high=stored.high)


@dataclass
class Batch:
    """Some samples, preprocessed for the network.

    `inputs` are the positional arguments of the network, each of shape (N, ...). `targets` hold, by head name, class
    indices (N,) int64 (NO_LABEL for a missing label), class probabilities (N, classes) or scaled numbers (N, columns).
    """

    ids: Ids
    inputs: Inputs
    targets: Targets
    lengths: Lengths | None = None
    """Number of real tokens of each sample; the last input is then their mask (N, tokens), padding last."""

    def __post_init__(self) -> None:
        if self.lengths is not None:
            attach_lengths(self.inputs[-1], self.lengths)

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`; the copy does not block if memory is pinned."""
        return self._map(lambda x: x.to(device, non_blocking=True), self.ids, self.lengths)

    def pin_memory(self) -> Batch:
        """Copy to pinned memory, or return self if no more can be pinned. torch's DataLoader calls this method."""
        from drivetrain.system import torch_errors

        try:
            return self._map(lambda x: x.pin_memory(), self.ids, self.lengths)
        except RuntimeError as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            return self

    def take_rows(self, rows: Ids) -> Batch:
        """Take the samples at these positions of the batch, as a batch."""
        lengths = None if self.lengths is None else self.lengths[rows]
        return self._map(lambda x: x[onto(x.device, rows)], self.ids[rows], lengths)

    def between(self, start: int, end: int) -> Batch:
        """Return the samples from `start` to `end`, exclusive, as a batch."""
        rows = slice(start, end)
        return self._map(lambda x: x[rows], self.ids[rows], None if self.lengths is None else self.lengths[rows])

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor], ids: Ids, lengths: Lengths | None) -> Batch:
        """Return a batch with these ids and lengths, and with the tensors of this batch changed by `change`."""
        targets = {name: change(y) for name, y in self.targets.items()}
        return Batch(ids, tuple(map(change, self.inputs)), targets, lengths)

    def split(self, size: int) -> Iterator[Batch]:
        """Yield micro-batches of at most `size` samples, in order."""
        if size >= len(self):
            yield self
            return
        for start in range(0, len(self), size):
            yield self.between(start, start + size)

    def split_evenly(self, count: int) -> Iterator[Batch]:
        """Split into `count` micro-batches, in order, whose sizes differ by at most one."""
        bounds = [len(self) * number // count for number in range(count + 1)]
        return (self.between(start, end) for start, end in pairwise(bounds))


def attach_lengths(mask: Any, lengths: Lengths) -> None:
    """Store the lengths of a mask (N, tokens) on the mask; tensors computed from it do not inherit them."""
    setattr(mask, _LENGTHS, lengths)


def find_known_lengths(mask: torch.Tensor) -> Lengths | None:
    """Find the attached lengths, or count them on the CPU; None if the mask would have to be read from a GPU."""
    attached: Lengths | None = getattr(mask, _LENGTHS, None)
    return count_tokens(mask) if attached is None and mask.device.type == "cpu" else attached


def read_lengths(mask: torch.Tensor) -> Lengths:
    """Read the number of real tokens of each row; waits for the GPU if they must be counted there."""
    lengths = find_known_lengths(mask)
    return count_tokens(mask) if lengths is None else lengths


def count_tokens(mask: torch.Tensor) -> Lengths:
    """Count the real tokens of each row of a mask (N, tokens), on its device."""
    lengths: Lengths = mask.sum(dim=1).cpu().numpy()
    return lengths


class Split(Protocol):
    """Training or validation samples, numbered from 0."""

    targets: Targets
    """All targets by head, each of shape (size, ...)."""

    def __len__(self) -> int: ...

    def gather(self, ids: Ids) -> Inputs:
        """Return the raw inputs of these samples; may run in a worker process."""
        ...

    def title(self, index: int) -> str:
        """Return a name for one sample in lists: a path, a row, or the text itself."""
        ...


@runtime_checkable
class Masked(Protocol):
    """Split whose samples may have different lengths."""

    @property
    def masked(self) -> bool:
        """Whether the last input is a mask (N, tokens) of real tokens, which come first."""
        ...


@runtime_checkable
class JointTargets(Protocol):
    """Split whose targets are known only once the samples are read; its `targets` attribute reads all samples."""

    def samples(self, ids: Ids) -> tuple[Inputs, Targets]:
        """Return the raw inputs and targets of these samples; may run in a worker process.

        If a sampler draws a sample several times in an epoch, the id of its n-th repetition is id + n * size, so that
        each repetition is augmented with other random numbers.
        """
        ...


@runtime_checkable
class ChangesByEpoch(Protocol):
    """Split whose inputs differ from epoch to epoch."""

    def at_epoch(self, epoch: int) -> Split:
        """Return the samples of this epoch, counted from 0."""
        ...


class Order(Protocol):
    """Selection and order of the samples of an epoch."""

    count: int
    """Number of samples in an epoch."""

    def __call__(self, epoch: int) -> Ids:
        """Return the ids of the epoch's samples; shape (count,), int64."""
        ...


class Preprocessing(Protocol):
    """Conversion of raw inputs to network inputs, on their device, with augmentation only if an epoch is given."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs: ...


def keep_unchanged(inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
    """Return the inputs unchanged, for data that needs no preprocessing."""
    return inputs


@dataclass
class Dataset:
    """Training and validation data, with everything that prediction needs."""

    train: Split
    validation: Split
    heads: dict[str, Head]
    preprocessing: dict[str, Any]
    """Settings that `predict` uses to preprocess new samples; plain JSON values, stored with the model."""
    prepare: Preprocessing = keep_unchanged
    mixable: bool = True
    """Whether the inputs are numbers that mixup can blend."""
    views: int = 0
    """Number of epochs after which the augmentation of training samples repeats; 0 if it never repeats, or is off."""
    decoded: bool = True
    """Whether samples are already decoded, not decoded from files on each use."""
    test: NewSamples | None = None
    """Samples for a final test after training, which nothing else uses."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user about the data: counts, skipped files, conversions."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts about the data, by key, as numbers and names. Code that decides, such as the report's advice, reads these
    and never the text of a note.
    """
    order: Order | None = None
    """Selection and order of the training samples of an epoch; None to shuffle all samples."""
    drop_last: bool = False
    """Whether an epoch drops its last batch if it is smaller than the others."""
    loss: Any = None
    """User's loss, which replaces the job's loss: a CustomTerms, whose module imports this one."""
    files: dict[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)
    """Data files that the spec names only indirectly, by the spec key of the folder or file that led to them. Paths are
    relative to that folder, or to the folder of that file.
    """
    content: Callable[[], dict[str, str]] = dict
    """Function that computes digests of arrays passed by a Python program, by split, in about a second per GB."""
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values computed once from the samples: activations of the network's frozen layers, or a copy on the GPU."""


@dataclass
class NewSamples:
    """Samples that were not part of the training: for `predict` (no targets) and `evaluate --data` (with targets)."""

    split: Split
    prepare: Preprocessing
    notes: list[str] = field(default_factory=list)
    """Notes for the user: skipped files or rows, and why."""
    row_numbers: Ids | None = None
    """Row of each sample in its table, from 1, without the header; None if they are not from a single table."""
    files: Sequence[str] = ()
    """Names of the files of samples, relative to their folder; empty if samples are no files."""


def longest_samples(split: Split, count: int) -> Ids:
    """Return the ids of the longest samples, or of the first samples if all have the same length."""
    lengths: Any = getattr(split, "lengths", None)
    ids: Ids = np.arange(len(split)) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
    return ids[:count]


def onto(
    device: torch.device, values: Tensor | npt.NDArray[np.generic] | Sequence[float], dtype: torch.dtype | None = None
) -> Tensor:
    """Copy values to a tensor on `device`; the dtype of `values` stays unless `dtype` is given; float32 for numbers.

    `torch.tensor(..., device=...)` and `.to(device)` wait until the GPU has finished its queued work. Here the copy is
    queued instead; the host's memory is read before the call returns.
    """
    import torch

    on_host = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    return on_host.to(device, dtype, non_blocking=True)
