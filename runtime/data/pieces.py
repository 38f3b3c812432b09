"""Pieces: a batch of texts cut into parts of like length, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from runtime.data.dataset import Batch

Lengths = npt.NDArray[np.int64]


def cut(batch: Batch, most: int, tokens: int) -> Iterator[Batch]:
    """Parts of a batch, the longest texts first, each no wider than its longest text.

    Args:
        batch: its inputs are (N, tokens, ...), the last of them the mask (N, tokens) of real tokens, which come first;
            one with a single input has one row for each sample and is cut as it lies.
        most: samples in a part at most.
        tokens: tokens in a part at most, padding included; a longer text is a part of its own.
    """
    if len(batch.inputs) == 1:
        yield from batch.split(most)
        return
    lengths = batch.inputs[-1].sum(dim=1).cpu().numpy()
    for rows in pieces(lengths, most, tokens):
        index, longest = torch.from_numpy(rows).to(batch.inputs[0].device), int(lengths[rows].max())
        yield Batch(batch.ids[rows], tuple(x[index, :longest] for x in batch.inputs),
                    {name: y[index] for name, y in batch.targets.items()})  # fmt: skip


def pieces(lengths: Lengths, most: int, tokens: int) -> list[Lengths]:
    """Which rows come together: sorted by length, equal ones in order; a function of the lengths alone."""
    order = np.argsort(-lengths, kind="stable")
    found, first = [], 0
    while first < len(order):
        count = max(1, min(most, tokens // max(1, int(lengths[order[first]]))))
        found.append(order[first : first + count])
        first += count
    return found


def computed(lengths: Lengths, most: int, tokens: int) -> int:
    """Tokens that are computed for a batch that is cut so, padding included."""
    return sum(len(rows) * int(lengths[rows].max()) for rows in pieces(lengths, most, tokens))
