"""Evaluation of a network whose weights are divided: all processes compute as many batches, whatever their share is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runtime.data.dataset import Batch
from runtime.distributed.ranks import Ranks


def together(ranks: Ranks, own: Iterator[Batch], spare: Callable[[], Batch]) -> Iterator[tuple[Batch, bool]]:
    """The batches of this process, and others that count nothing until all processes have computed theirs.

    Args:
        ranks: the processes, which call this together.
        own: the batches of this one.
        spare: a batch for the others' sake.

    Returns:
        Batches, and whether they count.

    Raises:
        PeerError: if another process is gone.
    """
    while True:
        batch = next(own, None)
        if not any(row[0] for row in ranks.all_gather([float(batch is not None)])):
            return
        yield (batch, True) if batch is not None else (spare(), False)
