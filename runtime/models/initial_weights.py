"""Starts a network from existing weights: of an earlier run (`model.from`), or of a file (`model.weights`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runtime.data.dataset import Dataset, Head, head
from runtime.data.labels import listed
from runtime.errors import DrivetrainError, SpecError
from runtime.job import Job
from runtime.job.images import ImageJob
from runtime.job.series import SeriesJob
from runtime.models import safetensors_file
from runtime.models.builders import BUILDERS, no_larger_than
from runtime.models.networks import cnn
from runtime.pretrained.earlier_run import WEIGHTS, EarlierModel

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
    counts = {name: each.outputs for name, each in dataset.heads.items()}
    arguments = _with_counts(_resized(job, earlier, dataset), counts)
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
    theirs = {row["name"]: head(row) for row in earlier.heads}
    anew = [name for name, ours in dataset.heads.items() if not _same(ours, theirs.get(name))]
    ours_by_head = _head_tensors(earlier.builder, arguments)
    theirs_by_head = _head_tensors(earlier.builder, earlier.arguments)
    fresh = {tensor for name in anew for tensor in ours_by_head[name]}
    # Heads are numbered in the order of the job, which may be another one than in the earlier run.
    source = {
        ours: known
        for name in dataset.heads
        if name not in anew
        for ours, known in zip(ours_by_head[name], theirs_by_head[name], strict=True)
    }
    file = earlier.folder / WEIGHTS

    def refuse(given: str, possible: str, action: str) -> SpecError:
        return SpecError([job.problem(job.model_key("name"), given, possible, action)])

    stored = _read(file, refuse)
    stored |= {ours: stored[known] for ours, known in source.items() if known in stored}
    _fill(network, stored, fresh, file, refuse)
    notes = [f"starts from {earlier.folder}, {_count(network, fresh)} tensors"]
    if anew:
        names = ", ".join(name or "the classifier" for name in anew)
        notes.append(
            f"initialized anew, since the classes differ from {earlier.folder}: {names} ({listed(sorted(fresh), 6)})"
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

    def refuse(given: str, possible: str, action: str) -> SpecError:
        return SpecError([job.problem(("model", "weights"), given, possible, action)])

    file = job.resolve(name)
    if file.suffix != ".safetensors":
        if file.is_dir():
            raise refuse(
                f"{file} is a folder", "a .safetensors file", f"write model: {{from: {name}}} for an earlier run"
            )
        raise refuse(f"{file} is not a .safetensors file", "weights without pickle", f"run `drivetrain convert {file}`")
    weights, own = _read(file, refuse), network.state_dict()
    fresh = {key for key in outputs if key not in weights or weights[key].shape != own[key].shape}
    _fill(network, weights, fresh, file, refuse)
    notes = [f"starts from {file}, {_count(network, fresh)} tensors"]
    if unused := sorted(weights.keys() - own.keys()):
        notes.append(f"not used, since the network has no such tensors: {listed(unused, 6)}")
    if fresh:
        notes.append(f"initialized anew, since {file.name} has no outputs of this shape: {listed(sorted(fresh), 6)}")
    return fresh, notes


def outputs_of(builder: str, arguments: Mapping[str, Any]) -> set[str]:
    """The names of all tensors whose shape depends on the number of outputs."""
    return {tensor for tensors in _head_tensors(builder, arguments).values() for tensor in tensors}


def outputs_by_shape(network: nn.Module, heads: Mapping[str, Head]) -> set[str]:
    """The names of all tensors with as many rows as a head has outputs, for networks of user code."""
    counts = {each.outputs for each in heads.values()}
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
    after = _shapes(builder, _with_counts(arguments, {name: sizes[name] + more for more, name in names.items()}))
    found: dict[str, list[str]] = {name: [] for name in sizes}
    for key, shape in before.items():
        if growth := sum(after[key]) - sum(shape):
            found[names[growth]].append(key)
    return found


def _shapes(builder: str, arguments: Mapping[str, Any]) -> dict[str, torch.Size]:
    """The shapes of all tensors of a network; no memory is allocated, and no random number is used up."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return {key: value.shape for key, value in BUILDERS[builder](**arguments).state_dict().items()}


def _with_counts(arguments: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of a builder with these numbers of outputs, by head."""
    if "classes" in arguments:
        return {**arguments, "classes": counts[""]}
    return {**arguments, "outputs": dict(counts) if isinstance(arguments["outputs"], Mapping) else counts[""]}


def _resized(job: Job, earlier: EarlierModel, dataset: Dataset) -> dict[str, Any]:
    """The arguments of the earlier network for images of this job's size."""
    arguments = dict(earlier.arguments)
    if isinstance(job, SeriesJob):
        _check_window(job, earlier, dataset.preprocessing["length"])
    if not isinstance(job, ImageJob):
        return arguments
    size, known = dataset.preprocessing["image_size"], earlier.preprocessing["image_size"]
    if size == known:
        return arguments
    if arguments["stem"] == "auto":
        # The size decided the stem when that run began.
        arguments["stem"] = "small" if known <= cnn.SMALL_IMAGE else "large"
    return arguments | {"image_size": size}


def _check_window(job: SeriesJob, earlier: EarlierModel, length: int) -> None:
    """Check that the pooling of the earlier network leaves something of a window."""
    least = earlier.arguments.get("pool", 1) ** len(earlier.arguments.get("cnn_channels", ()))
    if length < least:
        given = f"has windows of {length} rows, of which the pooling of {earlier.folder} leaves nothing"
        key = ("data", "train" if job.data.arrays else "window")
        earlier.refuse(given, f"{least} rows or more", "use longer windows, or another run", key)


def _fill(network: nn.Module, weights: Mapping[str, Tensor], fresh: set[str], file: Path, refuse: Refuse) -> None:
    """Load all tensors but the fresh ones."""
    own = network.state_dict()
    wrong = [
        f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, expected {tuple(value.shape)}"
        for name, value in own.items()
        if name not in fresh and (name not in weights or weights[name].shape != value.shape)
    ]
    if wrong:
        more = f" and {len(wrong) - 3:,} more" if len(wrong) > 3 else ""
        raise refuse(
            f"{file} does not fit the network: {'; '.join(wrong[:3])}{more}",
            "weights of the same network",
            "check that both come from the same network",
        )
    network.load_state_dict(own | {name: weights[name] for name in own if name not in fresh})


def _read(file: Path, refuse: Refuse) -> dict[str, Tensor]:
    try:
        return safetensors_file.read(file)
    except (OSError, ValueError) as error:
        raise refuse(f"{file} cannot be read: {error}", "a complete file", "copy it again") from None


def _count(network: nn.Module, fresh: set[str]) -> str:
    total = len(network.state_dict())
    return f"{total - len(fresh)} of {total}" if fresh else f"all {total}"
