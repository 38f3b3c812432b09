"""Saves a checkpoint, and finds the one from which a run resumes, in all of its processes together.

The leader finds and verifies the checkpoint. The others may be on machines that cannot read its folder, and get it from
the leader; where weights are divided, each process reads its own parts of the leader's folder. There all write, too:

    checkpoints/step-120/   shard-00001-....safetensors  shard-00002-....safetensors  state.json  MANIFEST.json

All processes have to see the leader's folder. The manifest is written last, after the parts of all are on disk, and the
folder is renamed then; so a process that is killed at any moment leaves the checkpoint before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from drivetrain.distributed.ranks import Ranks
from drivetrain.distributed.sharded_tensor import cut_part, is_sharded
from drivetrain.distributed.store import find_node_name
from drivetrain.errors import CheckpointError, StorageError
from drivetrain.models.safetensors_file import Tensors
from drivetrain.system.files import storage_error
from drivetrain.training.checkpoints import checkpoint, divided_tensors
from drivetrain.training.checkpoints.checkpoint import Loaded
from drivetrain.training.checkpoints.manifest import DIVIDED, Entry, is_divided


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
    if divides and ranks.copy_from_rank0([float(path is not None and is_divided(path))])[0]:
        return _read_together(ranks, path, model), passed
    loaded = _send_to_all(ranks, checkpoint.load(path) if path else None, folder)
    return (_own_parts(ranks, loaded, model) if divides and loaded else loaded), passed


def _read_together(ranks: Ranks, path: Path | None, model: nn.Module) -> Loaded:
    """A checkpoint of parts, of which every process reads its own."""
    head = {"path": str(path.resolve()), "state": checkpoint.state_of(path)} if path else None
    announced = json.loads(ranks.copy_text_from(0, json.dumps(head)))
    folder = Path(announced["path"])
    sees = [bool(row[0]) for row in ranks.all_gather([float(folder.is_dir())])]
    if not all(sees):
        raise CheckpointError(
            f"{ranks.copy_text_from(sees.index(False), find_node_name())} does not see {folder}, from which the run resumes",
            "a run folder that all processes see under one path, since each reads its part of the weights "
            "(optimize.sharding)",
            "choose a folder on a file system that all machines share, with --runs DIR",
        )
    return Loaded(folder, divided_tensors.read_parts(ranks, folder, model), announced["state"])


def _own_parts(ranks: Ranks, loaded: Loaded, model: nn.Module) -> Loaded:
    """The parts of this process of a checkpoint with whole tensors: of a run that began with whole weights."""
    like = model.state_dict()

    def part(name: str, value: Tensor) -> Tensor:
        owner = like.get(name)
        if owner is None or not is_sharded(owner) or owner.shape != value.shape:
            return value
        return cut_part(value, ranks.number, ranks.count).clone()

    tensors: dict[str, dict[str, Tensor]] = {}
    for group, by_name in loaded.tensors.items():
        by_parameter = group == "optimizer"
        tensors[group] = {
            name: part(name.rpartition("/")[0] if by_parameter else name, value) for name, value in by_name.items()
        }
    return Loaded(loaded.path, tensors, loaded.state)


def _send_to_all(ranks: Ranks, loaded: Loaded | None, folder: Path) -> Loaded | None:
    """The leader's checkpoint in every process."""
    if ranks.count == 1:
        return loaded
    shapes = {
        group: {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
        for group, tensors in (loaded.tensors if loaded else {}).items()
    }
    head = {"name": loaded.path.name, "state": loaded.state, "tensors": shapes} if loaded else None
    announced = json.loads(ranks.copy_text_from(0, json.dumps(head)))
    if announced is None:
        return None
    if loaded is None:
        loaded = Loaded(folder / announced["name"], _empty(announced["tensors"]), announced["state"])
    for group in announced["tensors"]:
        for name in announced["tensors"][group]:
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


def save(ranks: Ranks, folder: Path, name: str, tensors: Mapping[str, Tensors], state: Mapping[str, object]) -> Path:
    """Write the checkpoint `folder/name`; all processes call it together.

    Args:
        ranks: the processes.
        folder: of the checkpoints; that of the leader counts.
        name: of the checkpoint.
        tensors: by file of a whole checkpoint, divided or whole.
        state: plain values of the run; those of the leader count.

    Raises:
        StorageError: in all processes, if one of them cannot write; nothing is left behind.
        PeerError: if another process is gone.
    """
    final = Path(ranks.copy_text_from(0, str((folder / name).resolve())))
    unfinished = Path(ranks.copy_text_from(0, str(checkpoint.beside(final))))
    try:
        _all(ranks, final, lambda: checkpoint.make_empty(unfinished) if ranks.is_rank0 else None)
        _all(ranks, final, lambda: _look_for(unfinished))
        _all(ranks, final, lambda: divided_tensors.write(ranks, unfinished, tensors))
        files = _gather_entries(ranks, final, unfinished)
        _all(
            ranks,
            final,
            lambda: checkpoint.commit(unfinished, final, state, DIVIDED, files) if ranks.is_rank0 else None,
        )
    finally:
        if ranks.is_rank0:
            checkpoint.discard(unfinished)
    return final


def _all(ranks: Ranks, path: Path, work: Callable[[], object]) -> None:
    """Do something in all processes; what the first of them meets is raised in all."""
    problem = ""
    try:
        work()
    except StorageError as error:
        problem = error.given
    except OSError as error:
        problem = storage_error(path, error).given
    has_problem = [bool(row[0]) for row in ranks.all_gather([float(bool(problem))])]
    if any(has_problem):
        raise StorageError(
            ranks.copy_text_from(has_problem.index(True), problem),
            "a run folder with free space that all processes see under one path, since each writes its part of the "
            "weights (optimize.sharding)",
            "free disk space, or choose a folder on a file system that all machines share, with --runs DIR",
        )


def _look_for(folder: Path) -> None:
    if not folder.is_dir():
        raise StorageError(f"{find_node_name()} does not see {folder.parent}, the checkpoints of the leader")


def _gather_entries(ranks: Ranks, final: Path, unfinished: Path) -> dict[str, Entry]:
    """The files of all processes."""
    entries: dict[str, Entry] = {}
    _all(ranks, final, lambda: entries.update(divided_tensors.describe_written(ranks, unfinished)))
    texts = [ranks.copy_text_from(rank, json.dumps(entries)) for rank in range(ranks.count)]
    return {name: entry for text in texts for name, entry in json.loads(text).items()}
