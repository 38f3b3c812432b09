"""Starts a network from existing weights: of an earlier run (`model.from`), or of a file (`model.weights`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Dataset, Head, head_from_json
from drivetrain.data.labels import list_names
from drivetrain.errors import DrivetrainError, SpecError
from drivetrain.job import Job
from drivetrain.job.images import ImageJob
from drivetrain.job.series import SeriesJob
from drivetrain.models import safetensors_file
from drivetrain.models.builders import BUILDERS, no_larger_than
from drivetrain.models.networks import cnn
from drivetrain.pretrained.earlier_run import WEIGHTS, EarlierModel

Refuse = Callable[[str, str, str], SpecError]
"""Makes an error of what was given, what is possible and what to do."""


@dataclass(frozen=True)
class Started:
    """A network with weights of an earlier run."""

    module: nn.Module
    arguments: dict[str, Any]
    """Arguments of its builder."""
    anew: set[str]
    """Tensors that were initialized anew."""
    notes: list[str]
    """What was taken and what was initialized anew."""


def from_run(job: Job, earlier: EarlierModel, dataset: Dataset) -> Started:
    """Build the network of an earlier run for other data, and take over its weights.

    An output keeps its weights if its classes, or the names of its numbers, are the same in the same order.

    Raises:
        SpecError: if the weights cannot be read or do not fit the network.
    """
    counts = {name: its_head.outputs for name, its_head in dataset.heads.items()}
    arguments = _with_counts(_resize_arguments(job, earlier, dataset), counts)
    try:
        with no_larger_than(earlier.folder / WEIGHTS):
            network = BUILDERS[earlier.builder](**arguments)
    except DrivetrainError:
        raise
    except Exception as error:  # an edited config.json can make a builder raise anything
        earlier.refuse(
            f"{earlier.folder}: the network cannot be built: {type(error).__name__}: {error}",
            "a model folder as written at the end of training",
            "copy the folder again, or use the version of drivetrain that wrote it",
        )
    theirs = {row["name"]: head_from_json(row) for row in earlier.heads}
    anew = [name for name, ours in dataset.heads.items() if not _same(ours, theirs.get(name))]
    ours_by_head = _head_tensors(earlier.builder, arguments)
    theirs_by_head = _head_tensors(earlier.builder, earlier.arguments)
    fresh = {tensor for name in anew for tensor in ours_by_head[name]}
    # Heads are numbered in the order of the job, which may be another one than in the earlier run.
    source = {
        ours: their_name
        for name in dataset.heads
        if name not in anew
        for ours, their_name in zip(ours_by_head[name], theirs_by_head[name], strict=True)
    }
    file = earlier.folder / WEIGHTS

    def refuse(description: str, possible: str, action: str) -> SpecError:
        return SpecError([job.problem(job.model_key("name"), description, possible, action)])

    stored = _read(file, refuse)
    stored |= {ours: stored[their_name] for ours, their_name in source.items() if their_name in stored}
    _fill(network, stored, fresh, file, refuse)
    notes = [f"starts from {earlier.folder}, {_count(network, fresh)} tensors"]
    if anew:
        names = ", ".join(name or "the classifier" for name in anew)
        notes.append(
            f"initialized anew, since the classes differ from {earlier.folder}: {names} ({list_names(sorted(fresh), 6)})"
        )
    return Started(network, arguments, fresh, notes)


def from_file(job: Job, name: str, network: nn.Module, outputs: set[str]) -> tuple[set[str], list[str]]:
    """Load weights from a file into a network of the job; returns the tensors that stay random, and notes.

    Args:
        job: the job.
        name: the file, as in the spec.
        network: with random weights.
        outputs: tensors that may have another shape or be missing in the file; they then stay random.

    Raises:
        SpecError: if the file cannot be read or does not fit.
    """

    def refuse(description: str, possible: str, action: str) -> SpecError:
        return SpecError([job.problem(("model", "weights"), description, possible, action)])

    file = job.resolve(name)
    if file.suffix != ".safetensors":
        if file.is_dir():
            raise refuse(
                f"{file} is a folder", "a .safetensors file", f"write model: {{from: {name}}} for an earlier run"
            )
        raise refuse(f"{file} is not a .safetensors file", "weights without pickle", f"run `drivetrain convert {file}`")
    weights, expected = _read(file, refuse), network.state_dict()
    fresh = {key for key in outputs if key not in weights or weights[key].shape != expected[key].shape}
    _fill(network, weights, fresh, file, refuse)
    notes = [f"starts from {file}, {_count(network, fresh)} tensors"]
    if unused := sorted(weights.keys() - expected.keys()):
        notes.append(f"not used, since the network has no such tensors: {list_names(unused, 6)}")
    if fresh:
        notes.append(
            f"initialized anew, since {file.name} has no outputs of this shape: {list_names(sorted(fresh), 6)}"
        )
    return fresh, notes


def outputs_of(builder: str, arguments: Mapping[str, Any]) -> set[str]:
    """The names of all tensors whose shape depends on the number of outputs."""
    return {tensor for tensors in _head_tensors(builder, arguments).values() for tensor in tensors}


def outputs_by_shape(network: nn.Module, heads: Mapping[str, Head]) -> set[str]:
    """The names of all tensors with as many rows as a head has outputs, for networks of user code."""
    counts = {head.outputs for head in heads.values()}
    return {name for name, value in network.state_dict().items() if value.dim() and value.shape[0] in counts}


def _same(ours: Head, theirs: Head | None) -> bool:
    """Whether both predict the same: the same classes, or numbers of the same names."""
    return theirs is not None and all(
        getattr(ours, key) == getattr(theirs, key) for key in ("classes", "columns", "several")
    )


def _head_tensors(builder: str, arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tensors of each head, by its name, in the order of the network.

    A second network has 1 more output in its first head, 2 more in its second, and so on: how much a tensor grows tells
    its head.
    """
    counts = arguments["classes"] if "classes" in arguments else arguments["outputs"]
    sizes = dict(counts) if isinstance(counts, Mapping) else {"": counts}
    names = dict(enumerate(sizes, 1))
    before = _shapes(builder, arguments)
    after = _shapes(
        builder, _with_counts(arguments, {name: sizes[name] + growth_of_head for growth_of_head, name in names.items()})
    )
    by_head: dict[str, list[str]] = {name: [] for name in sizes}
    for key, shape in before.items():
        if growth := sum(after[key]) - sum(shape):
            by_head[names[growth]].append(key)
    return by_head


def _shapes(builder: str, arguments: Mapping[str, Any]) -> dict[str, torch.Size]:
    """The shapes of all tensors of a network; no memory is allocated, and no random number is used up."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return {key: value.shape for key, value in BUILDERS[builder](**arguments).state_dict().items()}


def _with_counts(arguments: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of a builder with these numbers of outputs, by head."""
    if "classes" in arguments:
        return {**arguments, "classes": counts[""]}
    return {**arguments, "outputs": dict(counts) if isinstance(arguments["outputs"], Mapping) else counts[""]}


def _resize_arguments(job: Job, earlier: EarlierModel, dataset: Dataset) -> dict[str, Any]:
    """The arguments of the earlier network for images of this job's size."""
    arguments = dict(earlier.arguments)
    if isinstance(job, SeriesJob):
        _check_window(job, earlier, dataset.preprocessing["length"])
    if not isinstance(job, ImageJob):
        return arguments
    size, earlier_size = dataset.preprocessing["image_size"], earlier.preprocessing["image_size"]
    if size == earlier_size:
        return arguments
    if arguments["stem"] == "auto":
        # The size decided the stem when that run began.
        arguments["stem"] = "small" if earlier_size <= cnn.SMALL_IMAGE else "large"
    return arguments | {"image_size": size}


def _check_window(job: SeriesJob, earlier: EarlierModel, length: int) -> None:
    """Check that the pooling of the earlier network leaves something of a window."""
    least = earlier.arguments.get("pool", 1) ** len(earlier.arguments.get("cnn_channels", ()))
    if length < least:
        description = f"has windows of {length} rows, of which the pooling of {earlier.folder} leaves nothing"
        key = ("data", "train" if job.data.arrays else "window")
        earlier.refuse(description, f"{least} rows or more", "use longer windows, or another run", key)


def _fill(network: nn.Module, weights: Mapping[str, Tensor], fresh: set[str], file: Path, refuse: Refuse) -> None:
    """Load all tensors but the fresh ones."""
    expected = network.state_dict()
    wrong = [
        f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, expected {tuple(value.shape)}"
        for name, value in expected.items()
        if name not in fresh and (name not in weights or weights[name].shape != value.shape)
    ]
    if wrong:
        remainder = f" and {len(wrong) - 3:,} more" if len(wrong) > 3 else ""
        raise refuse(
            f"{file} does not fit the network: {'; '.join(wrong[:3])}{remainder}",
            "weights of the same network",
            "check that both come from the same network",
        )
    network.load_state_dict(expected | {name: weights[name] for name in expected if name not in fresh})


def _read(file: Path, refuse: Refuse) -> dict[str, Tensor]:
    try:
        return safetensors_file.read(file)
    except (OSError, ValueError) as error:
        raise refuse(f"{file} cannot be read: {error}", "a complete file", "copy it again") from None


def _count(network: nn.Module, fresh: set[str]) -> str:
    total = len(network.state_dict())
    return f"{total - len(fresh)} of {total}" if fresh else f"all {total}"
