"""Saves and loads checkpoints in all processes of a run together.

The leader finds and verifies the checkpoint. The others may be on machines that cannot read its folder, and get it from
the leader; where weights are divided, each process reads its own parts of the leader's folder. There all write, too:

    checkpoints/step-120/   shard-00001-....safetensors  shard-00002-....safetensors  state.json  MANIFEST.json

All processes have to see the leader's folder. The manifest is written last, after the parts of all are on disk, and the
folder is renamed then; so a process that is killed at any moment leaves the checkpoint before.
"""

from __future__ import annotations

import json
import shutil
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
from drivetrain.training.checkpoints.manifest import DIVIDED_FORMAT, Entry, is_divided
from drivetrain.training.peers import find_first_text
from drivetrain.training.run import Run


def load_latest(run: Run) -> tuple[Loaded | None, list[str]]:
    """Load the newest checkpoint that verifies; also returns a line for each damaged one. All processes call it together.

    The folder of the leader counts. If the weights are divided, each process gets its part of the tensors.

    Raises:
        CheckpointError: if there are checkpoints and none verifies, or a process has to read it and cannot.
        PeerError: if another process is gone.
    """
    ranks, folder, model = run.ranks, run.checkpoints, run.model
    path, damaged = checkpoint.find_newest(folder) if ranks.is_rank0 else (None, [])
    is_divided_model = any(is_sharded(p) for p in model.parameters())
    if is_divided_model and ranks.copy_from_rank0([float(path is not None and is_divided(path))])[0]:
        return _read_together(ranks, path, model), damaged
    loaded = _send_to_all(ranks, checkpoint.load(path) if path else None, folder)
    return (_take_local_parts(ranks, loaded, model) if is_divided_model and loaded else loaded), damaged


def _read_together(ranks: Ranks, path: Path | None, model: nn.Module) -> Loaded:
    """Load a checkpoint of divided weights; every process reads its own parts. `path` is None but in rank 0."""
    header = {"path": str(path.resolve()), "state": checkpoint.read_state(path)} if path else None
    leader_header = json.loads(ranks.copy_text_from(0, json.dumps(header)))
    folder = Path(leader_header["path"])
    if node := find_first_text(ranks, "" if folder.is_dir() else find_node_name()):
        raise CheckpointError(
            f"{node} does not see {folder}, from which the run resumes",
            "a run folder that all processes see under one path, since each reads its part of the weights "
            "(optimize.sharding)",
            "choose a folder on a file system that all machines share, with --runs DIR",
        )
    return Loaded(folder, divided_tensors.read_parts(ranks, folder, model), leader_header["state"])


def _take_local_parts(ranks: Ranks, loaded: Loaded, model: nn.Module) -> Loaded:
    """This process's parts of a checkpoint with whole tensors, from a run that began without sharding."""
    parameters = model.state_dict()

    def take_part(name: str, value: Tensor) -> Tensor:
        parameter = parameters.get(name)
        if parameter is None or not is_sharded(parameter) or parameter.shape != value.shape:
            return value
        return cut_part(value, ranks.number, ranks.count).clone()

    tensors: dict[str, dict[str, Tensor]] = {}
    for group, by_name in loaded.tensors.items():
        is_optimizer = group == "optimizer"
        tensors[group] = {
            name: take_part(name.rpartition("/")[0] if is_optimizer else name, value) for name, value in by_name.items()
        }
    return Loaded(loaded.path, tensors, loaded.state)


def _send_to_all(ranks: Ranks, loaded: Loaded | None, folder: Path) -> Loaded | None:
    """Send the leader's checkpoint to every process, and return it; None if there is none."""
    if ranks.count == 1:
        return loaded
    shapes = {
        group: {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
        for group, tensors in (loaded.tensors if loaded else {}).items()
    }
    header = {"name": loaded.path.name, "state": loaded.state, "tensors": shapes} if loaded else None
    leader_header = json.loads(ranks.copy_text_from(0, json.dumps(header)))
    if leader_header is None:
        return None
    if loaded is None:
        loaded = Loaded(
            folder / leader_header["name"], _allocate_tensors(leader_header["tensors"]), leader_header["state"]
        )
    for group in leader_header["tensors"]:
        for name in leader_header["tensors"][group]:
            # One tensor at a time: a copy of all together would take as much memory again.
            ranks.broadcast([loaded.tensors[group][name]])
    return loaded


def _allocate_tensors(shapes: Mapping[str, Mapping[str, tuple[list[int], str]]]) -> dict[str, dict[str, Tensor]]:
    return {
        group: {
            name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            for name, (shape, dtype) in rows.items()
        }
        for group, rows in shapes.items()
    }


def save_together(run: Run, name: str, tensors: Mapping[str, Tensors], state: Mapping[str, object]) -> Path:
    """Write the checkpoint `name` into the leader's folder; all processes call it together.

    Args:
        tensors: by file of a whole checkpoint, then by name; divided or whole.
        state: plain values of the run; those of the leader count.

    Raises:
        StorageError: in all processes, if one of them cannot write; nothing is left behind.
        PeerError: if another process is gone.
    """
    ranks = run.ranks
    final = Path(ranks.copy_text_from(0, str((run.checkpoints / name).resolve())))
    unfinished = Path(ranks.copy_text_from(0, str(checkpoint.unfinished_folder(final))))
    try:
        _run_in_all(ranks, final, lambda: checkpoint.create_unfinished(unfinished) if ranks.is_rank0 else None)
        _run_in_all(ranks, final, lambda: _check_visible(unfinished))
        _run_in_all(ranks, final, lambda: divided_tensors.write_parts(ranks, unfinished, tensors))
        files = _gather_entries(ranks, final, unfinished)
        _run_in_all(
            ranks,
            final,
            lambda: checkpoint.commit(unfinished, final, state, DIVIDED_FORMAT, files) if ranks.is_rank0 else None,
        )
    finally:
        if ranks.is_rank0:
            shutil.rmtree(unfinished, ignore_errors=True)
    return final


def _run_in_all(ranks: Ranks, path: Path, function: Callable[[], object]) -> None:
    """Call a function in all processes; the error of the first process that has one is raised in all."""
    problem = ""
    try:
        function()
    except StorageError as error:
        problem = error.given
    except OSError as error:
        problem = storage_error(path, error).given
    if first_problem := find_first_text(ranks, problem):
        raise StorageError(
            first_problem,
            "a run folder with free space that all processes see under one path, since each writes its part of the "
            "weights (optimize.sharding)",
            "free disk space, or choose a folder on a file system that all machines share, with --runs DIR",
        )


def _check_visible(folder: Path) -> None:
    if not folder.is_dir():
        raise StorageError(f"{find_node_name()} does not see {folder.parent}, the checkpoints of the leader")


def _gather_entries(ranks: Ranks, final: Path, unfinished: Path) -> dict[str, Entry]:
    """The manifest entries of the files that all processes have written, by name."""
    entries: dict[str, Entry] = {}
    _run_in_all(ranks, final, lambda: entries.update(divided_tensors.describe_written(ranks, unfinished)))
    texts = [ranks.copy_text_from(rank, json.dumps(entries)) for rank in range(ranks.count)]
    return {name: entry for text in texts for name, entry in json.loads(text).items()}
