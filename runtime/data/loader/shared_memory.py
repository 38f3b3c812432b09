"""Limits the number of loader workers to what shared memory can hold."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from runtime.data.dataset import JointTargets, Split, longest_samples
from runtime.job.workload import BATCHES_PER_WORKER
from runtime.system.units import format_bytes as readable

PLACE = Path("/dev/shm")


class SharedMemory:
    """Checks shared memory for batches; each batch size is measured once.

    Args:
        processes: number of ranks that share it.
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self.known: dict[tuple[int, int], tuple[Split, int]] = {}

    def workers(self, split: Split, count: int, asked: int) -> tuple[int, str]:
        """How many of the requested workers have room; when first measured, also why they are fewer.

        Args:
            split: source of the samples.
            count: size of the largest batch.
            asked: requested workers.
        """
        if not asked or (room := _room()) is None:
            return asked, ""
        key = (id(split), count)
        if key in self.known:
            return min(asked, self.known[key][1]), ""
        batch = count * _bytes(split)
        fits = room // self.processes // max(1, BATCHES_PER_WORKER * batch)
        self.known[key] = split, fits
        if fits >= asked:
            return asked, ""
        who = (
            f"are prepared by {fits} instead of {asked} loader workers"
            if fits
            else "are prepared without loader workers"
        )
        return fits, f"{PLACE} has {readable(room)} free: batches of {count:,} samples, {readable(batch)} each, {who}"


def _room() -> int | None:
    """Free bytes of shared memory; None if there is no /dev/shm."""
    try:
        found = os.statvfs(PLACE)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _bytes(split: Split) -> int:
    """Bytes of the longest sample."""
    ids = longest_samples(split, 1)
    tensors: list[Tensor] = []
    if isinstance(split, JointTargets):
        inputs, targets = split.samples(ids)
        tensors += [*inputs, *targets.values()]
    else:
        tensors += [*split.gather(ids), *(y[torch.from_numpy(ids)] for y in split.targets.values())]
    return sum(x.numel() * x.element_size() for x in tensors)
