"""The checkpoint from which a run resumes, in all of its processes.

The leader finds and verifies it. The others may be on machines that cannot read its folder, and get it from the leader;
where weights are divided, each process reads its own parts of the leader's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from runtime.distributed.ranks import Ranks
from runtime.distributed.sharded_tensor import is_sharded, own_part
from runtime.distributed.store import node_name
from runtime.errors import CheckpointError
from runtime.training.checkpoints import checkpoint, divided_tensors
from runtime.training.checkpoints.checkpoint import Loaded
from runtime.training.checkpoints.manifest import is_divided


def latest(ranks: Ranks, folder: Path, model: nn.Module) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each that was skipped; all processes call it together.

    Args:
        ranks: the processes.
        folder: of the checkpoints; that of the leader counts.
        model: the network; if it is divided, each process gets its own part of the tensors.

    Raises:
        CheckpointError: if there are checkpoints and none verifies, or a process has to read it and cannot.
        PeerError: if another process is gone.
    """
    path, passed = checkpoint.newest(folder) if ranks.is_rank0 else (None, [])
    divides = any(is_sharded(p) for p in model.parameters())
    if divides and ranks.from_rank0([float(path is not None and is_divided(path))])[0]:
        return _read_together(ranks, path, model), passed
    loaded = _sent(ranks, checkpoint.load(path) if path else None, folder)
    return (_own_parts(ranks, loaded, model) if divides and loaded else loaded), passed


def _read_together(ranks: Ranks, path: Path | None, model: nn.Module) -> Loaded:
    """A checkpoint of parts, of which every process reads its own."""
    head = {"path": str(path.resolve()), "state": checkpoint.state_of(path)} if path else None
    told = json.loads(ranks.text_from(0, json.dumps(head)))
    place = Path(told["path"])
    sees = [bool(row[0]) for row in ranks.all_gather([float(place.is_dir())])]
    if not all(sees):
        raise CheckpointError(
            f"{ranks.text_from(sees.index(False), node_name())} does not see {place}, from which the run resumes",
            "a run folder that all processes see under one path, since each reads its part of the weights "
            "(optimize.sharding)",
            "choose a folder on a file system that all machines share, with --runs DIR",
        )
    return Loaded(place, divided_tensors.read_parts(ranks, place, model), told["state"])


def _own_parts(ranks: Ranks, loaded: Loaded, model: nn.Module) -> Loaded:
    """The parts of this process of a checkpoint with whole tensors: of a run that began with whole weights."""
    like = model.state_dict()

    def part(name: str, value: Tensor) -> Tensor:
        owner = like.get(name)
        if owner is None or not is_sharded(owner) or owner.shape != value.shape:
            return value
        return own_part(value, ranks.number, ranks.count).clone()

    tensors: dict[str, dict[str, Tensor]] = {}
    for group, held in loaded.tensors.items():
        by_parameter = group == "optimizer"
        tensors[group] = {
            name: part(name.rpartition("/")[0] if by_parameter else name, value) for name, value in held.items()
        }
    return Loaded(loaded.path, tensors, loaded.state)


def _sent(ranks: Ranks, loaded: Loaded | None, folder: Path) -> Loaded | None:
    """The leader's checkpoint in every process."""
    if ranks.count == 1:
        return loaded
    shapes = {
        group: {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
        for group, tensors in (loaded.tensors if loaded else {}).items()
    }
    head = {"name": loaded.path.name, "state": loaded.state, "tensors": shapes} if loaded else None
    told = json.loads(ranks.text_from(0, json.dumps(head)))
    if told is None:
        return None
    if loaded is None:
        loaded = Loaded(folder / told["name"], _empty(told["tensors"]), told["state"])
    for group in told["tensors"]:
        for name in told["tensors"][group]:
            # One by one: a copy of all of them would take as much memory again.
            ranks.broadcast([loaded.tensors[group][name]])
    return loaded


def _empty(shapes: Mapping[str, Mapping[str, tuple[list[int], str]]]) -> dict[str, dict[str, Tensor]]:
    return {
        group: {
            name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            for name, (shape, dtype) in rows.items()
        }
        for group, rows in shapes.items()
    }
