"""Loads checkpoints in all processes of a run together.

The leader finds and verifies the checkpoint, and sends it to the other processes, which may run on machines that cannot
read its folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from drivetrain.distributed.ranks import Ranks
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.checkpoints.checkpoint import Loaded
from drivetrain.training.run import Run


def load_latest(run: Run) -> tuple[Loaded | None, list[str]]:
    """Load the newest checkpoint that verifies in all processes together; also returns a line for each damaged one.

    The leader's folder is used.

    Raises:
        CheckpointError: if there are checkpoints and none verifies.
        PeerError: if another process has ended.
    """
    ranks, folder = run.ranks, run.checkpoints
    path, damaged = checkpoint.find_newest(folder) if ranks.is_rank0 else (None, [])
    return _send_to_all(ranks, checkpoint.load(path) if path else None, folder), damaged


def _send_to_all(ranks: Ranks, loaded: Loaded | None, folder: Path) -> Loaded | None:
    """Send the leader's checkpoint to all processes and return it; None if there is none."""
    if ranks.world_size == 1:
        return loaded
    header = None
    if loaded is not None:
        shapes = {}
        for group, tensors in loaded.tensors.items():
            shapes[group] = {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
        header = {"name": loaded.path.name, "state": loaded.state, "tensors": shapes}
    leader_header = json.loads(ranks.broadcast_text(json.dumps(header)))
    if leader_header is None:
        return None
    if loaded is None:
        loaded = Loaded(
            folder / leader_header["name"], _allocate_tensors(leader_header["tensors"]), leader_header["state"]
        )
    for group in leader_header["tensors"]:
        for name in leader_header["tensors"][group]:
            # One tensor at a time: a copy of all tensors at once would double the memory.
            ranks.start_broadcast([loaded.tensors[group][name]])()
    return loaded


def _allocate_tensors(shapes: Mapping[str, Mapping[str, tuple[list[int], str]]]) -> dict[str, dict[str, Tensor]]:
    tensors: dict[str, dict[str, Tensor]] = {}
    for group, rows in shapes.items():
        tensors[group] = {}
        for name, (shape, dtype) in rows.items():
            tensors[group][name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
    return tensors
