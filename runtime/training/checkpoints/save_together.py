"""Saves a checkpoint whose weights are divided among the processes of a run: all write, the leader commits.

    checkpoints/step-120/   shard-00001-....safetensors  shard-00002-....safetensors  state.json  MANIFEST.json

All processes have to see the leader's folder. The manifest is written last, after the parts of all are on disk, and the
folder is renamed then; so a process that is killed at any moment leaves the checkpoint before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from runtime.distributed.ranks import Ranks
from runtime.distributed.store import node_name
from runtime.errors import StorageError
from runtime.models.safetensors_file import Tensors
from runtime.system.files import storage_error
from runtime.training.checkpoints import checkpoint, divided_tensors
from runtime.training.checkpoints.manifest import DIVIDED, Entry


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
    final = Path(ranks.text_from(0, str((folder / name).resolve())))
    beside = Path(ranks.text_from(0, str(checkpoint.beside(final))))
    try:
        _all(ranks, final, lambda: checkpoint.make_empty(beside) if ranks.is_rank0 else None)
        _all(ranks, final, lambda: _look_for(beside))
        _all(ranks, final, lambda: divided_tensors.write(ranks, beside, tensors))
        files = _written(ranks, final, beside)
        _all(ranks, final, lambda: checkpoint.commit(beside, final, state, DIVIDED, files) if ranks.is_rank0 else None)
    finally:
        if ranks.is_rank0:
            checkpoint.discard(beside)
    return final


def _all(ranks: Ranks, place: Path, work: Callable[[], object]) -> None:
    """Do something in all processes; what the first of them meets is raised in all."""
    given = ""
    try:
        work()
    except StorageError as error:
        given = error.given
    except OSError as error:
        given = storage_error(place, error).given
    met = [bool(row[0]) for row in ranks.all_gather([float(bool(given))])]
    if any(met):
        raise StorageError(
            ranks.text_from(met.index(True), given),
            "a run folder with free space that all processes see under one path, since each writes its part of the "
            "weights (optimize.sharding)",
            "free disk space, or choose a folder on a file system that all machines share, with --runs DIR",
        )


def _look_for(folder: Path) -> None:
    if not folder.is_dir():
        raise StorageError(f"{node_name()} does not see {folder.parent}, the checkpoints of the leader")


def _written(ranks: Ranks, final: Path, beside: Path) -> dict[str, Entry]:
    """The files of all processes."""
    own: dict[str, Entry] = {}
    _all(ranks, final, lambda: own.update(divided_tensors.written(ranks, beside)))
    texts = [ranks.text_from(rank, json.dumps(own)) for rank in range(ranks.count)]
    return {name: entry for text in texts for name, entry in json.loads(text).items()}
