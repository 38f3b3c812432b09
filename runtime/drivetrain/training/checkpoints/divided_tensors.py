"""Writes and reads checkpoints of weights that are divided among processes; each process handles its own parts.

torch.distributed.checkpoint writes them in its safetensors format, which notes where in the whole tensor each part lies.
So another number of processes, or a single one, reads what it needs. Names are `model/NAME`, `optimizer/NAME/KEY` and
`ema/NAME`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.distributed.ranks import Ranks
from drivetrain.distributed.sharded_tensor import get_local_part, is_sharded
from drivetrain.errors import StorageError
from drivetrain.models.safetensors_file import Tensors
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import storage_error, sync_file
from drivetrain.training.checkpoints.manifest import Entry, describe_file


def write_parts(ranks: Ranks, folder: Path, tensors: Mapping[str, Tensors]) -> None:
    """Write this process's parts into a folder; all processes call it together.

    Args:
        ranks: the processes.
        folder: one that all processes see.
        tensors: by file of a whole checkpoint, then by name; divided or whole.

    Raises:
        StorageError: in all processes, if one cannot write.
        PeerError: if another process is gone.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    flat = {f"{group}/{name}": value.detach() for group, by_name in tensors.items() for name, value in by_name.items()}
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with ranks.raising_peer_errors():
            save(flat, storage_writer=writer)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, OSError):
            raise storage_error(folder, cause) from None
        raise StorageError(f"{folder}: process {rank + 1} of {ranks.count} cannot write its part: {cause}") from None


def describe_written(ranks: Ranks, folder: Path) -> dict[str, Entry]:
    """Size and SHA-256 of the files that this process has written, once they are on disk.

    Raises:
        OSError: if one cannot be read.
    """
    fault_point("tensors written")
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob(f"shard-{ranks.number + 1:05d}-*.safetensors")):
        sync_file(path)
        entries[path.name] = describe_file(path)
    return entries


def read_whole(folder: Path) -> dict[str, dict[str, Tensor]]:
    """All tensors, whole, by file and name, as one process would have saved them.

    Raises:
        ValueError: if they cannot be read.
    """
    with warnings.catch_warnings():
        # A single process reads what several have written.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        return _group_by_file(_read(folder, {}, alone=True))


def read_parts(ranks: Ranks, folder: Path, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """This process's parts of all tensors, by file and name; all processes call it together.

    Args:
        ranks: the processes.
        folder: one that all processes see.
        model: the divided network.

    Raises:
        PeerError: if another process is gone.
    """
    with ranks.raising_peer_errors():
        tensors = _read(folder, model.state_dict(), alone=False)
    return _group_by_file({name: get_local_part(value) for name, value in tensors.items()})


def _read(folder: Path, parameters: Mapping[str, Tensor], *, alone: bool) -> dict[str, Tensor]:
    """All tensors by name, divided as the parameters that they belong to."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors = {name: _allocate_target(name, entry, parameters) for name, entry in metadata.items()}
    load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    return tensors


def _allocate_target(name: str, entry: Any, parameters: Mapping[str, Tensor]) -> Tensor:
    """An empty tensor to read `name` into, divided as the parameter that it belongs to, else whole."""
    group, _, key = name.partition("/")
    parameter = parameters.get(key.rpartition("/")[0] if group == "optimizer" else key)
    dtype = entry.properties.dtype
    if parameter is not None and is_sharded(parameter) and parameter.shape == entry.size:
        return torch.empty_like(parameter, dtype=dtype)
    return torch.empty(entry.size, dtype=dtype)


def _group_by_file(flat: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {"optimizer": {}}  # empty before the first step
    for name, value in flat.items():
        group, _, key = name.partition("/")
        groups.setdefault(group, {})[key] = value
    return groups
