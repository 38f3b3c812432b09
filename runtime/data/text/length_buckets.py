"""Pieces: a batch of texts cut into parts of like length, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from runtime.data.dataset import Batch
from runtime.data.to_device import onto

PASS = 64
"""Tokens that one more pass through the network is worth."""

Lengths = npt.NDArray[np.int64]


def cut(batch: Batch, most: int, tokens: int) -> Iterator[Batch]:
    """Parts of a batch, the longest texts first, each no wider than its longest text.

    Args:
        batch: its inputs are (N, tokens, ...), the last of them the mask (N, tokens) of real tokens, which come first;
            one with a single input has one row for each sample and is cut as it lies, and so is one without samples.
        most: samples in a part at most.
        tokens: tokens in a part at most, padding included; a longer text is a part of its own.
    """
    if len(batch.inputs) == 1 or not len(batch):
        yield from batch.split(most)
        return
    lengths = batch.inputs[-1].sum(dim=1).cpu().numpy()
    for rows in pieces(lengths, most, tokens):
        index, longest = onto(batch.inputs[0].device, rows), int(lengths[rows].max())
        yield Batch(
            batch.ids[rows],
            tuple(x[index, :longest] for x in batch.inputs),
            {name: y[index] for name, y in batch.targets.items()},
        )


def rows(batch: Batch, most: int, tokens: int) -> Iterator[Batch]:
    """Parts of a batch as its texts lie, with so many real tokens and samples at most; a longer text is one of its own."""
    if len(batch.inputs) == 1 or not len(batch):
        yield from batch.split(most)
        return
    first, held, ends = 0, 0, []
    lengths = batch.inputs[-1].sum(dim=1).tolist()
    for place, length in enumerate(lengths):
        if place > first and (held + length > tokens or place - first == most):
            ends.append(place)
            first, held = place, 0
        held += length
    for start, end in pairwise([0, *ends, len(lengths)]):
        part, longest = batch.between(start, end), max(lengths[start:end])
        yield replace(part, inputs=tuple(x[:, :longest] for x in part.inputs))


def pieces(lengths: Lengths, most: int, tokens: int) -> list[Lengths]:
    """Which rows come together: neighbours in the order of length, cut where fewest tokens and passes are computed.

    A function of the lengths alone; rows of equal length keep their order.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order].tolist()
    # From the end on: the cost of the rest from each row, and where the part that begins there ends.
    cost, ends = [0] * (len(sizes) + 1), [0] * len(sizes)
    for first in reversed(range(len(sizes))):
        count = max(1, min(most, tokens // max(1, sizes[first])))
        cost[first], ends[first] = min(
            (PASS + (end - first) * sizes[first] + cost[end], end)
            for end in range(first + 1, min(len(sizes), first + count) + 1)
        )
    found, first = [], 0
    while first < len(sizes):
        found.append(order[first : ends[first]])
        first = ends[first]
    return found


def computed(lengths: Lengths, most: int, tokens: int) -> int:
    """Tokens that are computed for a batch that is cut so, padding included."""
    return sum(len(rows) * int(lengths[rows].max()) for rows in pieces(lengths, most, tokens))
