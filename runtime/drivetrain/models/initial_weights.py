"""Loads existing weights into a new network, from an earlier run (`model.from`) or a file (`model.weights`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Dataset, Head, head_from_json
from drivetrain.data.notes import list_names
from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job
from drivetrain.models import safetensors_file
from drivetrain.models.builders import BUILDERS
from drivetrain.models.described_network import build_described
from drivetrain.models.networks import tabm
from drivetrain.pretrained import convert
from drivetrain.pretrained.earlier_run import WEIGHTS, EarlierModel
from drivetrain.tasks import modality_of

Refuse = Callable[[str, str, str], SpecError]
"""Function that makes an error from a description, the possible values, and an action."""


@dataclass(frozen=True)
class LoadedNetwork:
    """A network with the weights of an earlier run."""

    module: nn.Module
    arguments: dict[str, Any]
    """Arguments of its builder."""
    random_names: set[str]
    """Names of tensors with random values."""
    notes: list[str]
    """Notes for the user about loaded and random tensors."""


def build_from_run(job: Job, earlier: EarlierModel, dataset: Dataset) -> LoadedNetwork:
    """Build the network of an earlier run for this job's data, and load its weights.

    A head keeps its weights if it has the same classes, or names of numbers, in the same order.

    Raises:
        SpecError: if the weights cannot be read or do not fit the network.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            build_described(earlier.folder, earlier.builder, earlier.arguments, earlier.preprocessing)
    except CheckpointError as error:
        earlier.refuse(error.given, error.possible, error.action)
    counts = {name: head.outputs for name, head in dataset.heads.items()}
    resized = dict(earlier.arguments)
    if earlier.builder == "tabm":
        resized["kind"] = tabm.choose_kind(dataset.heads[""])
    modality_of(job).adapt_arguments(resized, job, earlier, dataset)
    arguments = _set_output_counts(resized, counts)
    network = BUILDERS[earlier.builder](**arguments)
    earlier_heads = {row["name"]: head_from_json(row) for row in earlier.heads}
    new_heads = [name for name, head in dataset.heads.items() if not _predicts_same(head, earlier_heads.get(name))]
    tensors_by_head = _list_tensors_by_head(earlier.builder, arguments)
    earlier_tensors_by_head = _list_tensors_by_head(earlier.builder, earlier.arguments)
    random_names = {tensor for name in new_heads for tensor in tensors_by_head[name]}
    # Heads are numbered in the order of the job, which may differ from the order in the earlier run.
    earlier_names: dict[str, str] = {}
    for name in dataset.heads.keys() - set(new_heads):
        earlier_names |= zip(tensors_by_head[name], earlier_tensors_by_head[name], strict=True)
    file = earlier.folder / WEIGHTS

    def refuse(description: str, possible: str, action: str) -> SpecError:
        return job.spec_error(job.model_key("name"), description, possible, action)

    stored = dict(safetensors_file.read_or_refuse(file, refuse))
    stored |= {name: stored[earlier_name] for name, earlier_name in earlier_names.items() if earlier_name in stored}
    _load_weights(network, stored, random_names, file, refuse)
    notes = [f"starts from {earlier.folder}, {_describe_count(network, random_names)} tensors"]
    if new_heads:
        names = ", ".join(name or "the classifier" for name in new_heads)
        notes.append(
            f"initialized randomly, since the classes differ from {earlier.folder}: {names} ({list_names(sorted(random_names), 6)})"
        )
    return LoadedNetwork(network, arguments, random_names, notes)


def load_file(job: Job, name: str, network: nn.Module, outputs: set[str]) -> tuple[set[str], list[str]]:
    """Load weights from a file into a network of the job; returns the tensors that stay random, and notes.

    Args:
        job: job of the network.
        name: file, as named in the spec.
        network: network with random weights.
        outputs: names of tensors that stay random if the file does not have them or has another shape.

    Raises:
        SpecError: if the file cannot be read or does not fit.
    """

    def refuse(description: str, possible: str, action: str) -> SpecError:
        return job.spec_error(("model", "weights"), description, possible, action)

    file = job.resolve(name)
    if file.is_dir():
        raise refuse(f"{file} is a folder", "a .safetensors file", f"write model: {{from: {name}}} for an earlier run")
    convert.check_suffix(job, file)
    weights, expected = safetensors_file.read_or_refuse(file, refuse), network.state_dict()
    random_names = {key for key in outputs if key not in weights or weights[key].shape != expected[key].shape}
    _load_weights(network, weights, random_names, file, refuse)
    notes = [f"starts from {file}, {_describe_count(network, random_names)} tensors"]
    unused = sorted(weights.keys() - expected.keys())
    if unused:
        notes.append(f"not used, since the network has no such tensors: {list_names(unused, 6)}")
    if random_names:
        listed = list_names(sorted(random_names), 6)
        notes.append(f"initialized randomly, since {file.name} has no outputs of this shape: {listed}")
    return random_names, notes


def list_output_tensors(
    network: nn.Module, builder: str, arguments: Mapping[str, Any], heads: Mapping[str, Head]
) -> set[str]:
    """List the tensors whose shape depends on the number of outputs; in user code, all whose length equals it."""
    if builder != "own":
        return {tensor for tensors in _list_tensors_by_head(builder, arguments).values() for tensor in tensors}
    counts = {head.outputs for head in heads.values()}
    return {name for name, value in network.state_dict().items() if value.dim() and value.shape[0] in counts}


def _predicts_same(head: Head, earlier: Head | None) -> bool:
    """Return whether both heads predict the same classes, or numbers with the same names."""
    keys = ("classes", "columns", "several")
    return earlier is not None and all(getattr(head, key) == getattr(earlier, key) for key in keys)


def _list_tensors_by_head(builder: str, arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """List the tensor names of each head, by head name, in the order of the network.

    In a second network the first head has 1 more output, the second head 2 more, and so on, so the growth of a tensor
    identifies its head.
    """
    counts = arguments["classes"] if "classes" in arguments else arguments["outputs"]
    sizes = dict(counts) if isinstance(counts, Mapping) else {"": counts}
    head_by_growth = dict(enumerate(sizes, 1))
    grown_counts = {name: sizes[name] + growth for growth, name in head_by_growth.items()}
    shapes = _list_shapes(builder, arguments)
    grown_shapes = _list_shapes(builder, _set_output_counts(arguments, grown_counts))
    by_head: dict[str, list[str]] = {name: [] for name in sizes}
    for key, shape in shapes.items():
        growth = sum(grown_shapes[key]) - sum(shape)
        if growth:
            # A vector of all members of an ensemble, which has a single head, grows by a multiple.
            by_head[head_by_growth.get(growth, "")].append(key)
    return by_head


def _list_shapes(builder: str, arguments: Mapping[str, Any]) -> dict[str, torch.Size]:
    """List the shapes of all tensors of a network by name, without allocating memory or using random numbers."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return {key: value.shape for key, value in BUILDERS[builder](**arguments).state_dict().items()}


def _set_output_counts(arguments: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the arguments of a builder with other numbers of outputs by head."""
    if "classes" in arguments:
        return {**arguments, "classes": counts[""]}
    return {**arguments, "outputs": dict(counts) if isinstance(arguments["outputs"], Mapping) else counts[""]}


def _load_weights(
    network: nn.Module, weights: Mapping[str, Tensor], random_names: set[str], file: Path, refuse: Refuse
) -> None:
    """Load all tensors except the names in `random_names`."""
    misfits = safetensors_file.load(network, weights, random_names)
    if misfits:
        raise refuse(
            f"{file} does not fit the network: {list_names(list(misfits.values()), 3, '; ')}",
            "weights of the same network",
            "check that both come from the same network",
        )


def _describe_count(network: nn.Module, random_names: set[str]) -> str:
    total = len(network.state_dict())
    return f"{total - len(random_names)} of {total}" if random_names else f"all {total}"
