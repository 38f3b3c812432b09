"""Finds windows that share rows, as sliding windows over one recording do: on both sides of a split they give the answer away."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.data.groups import Groups

ROWS = 4
"""Rows in a row by which a place of a recording is recognized; all of them differ from the row before."""
MOST = 2_000_000
"""Places that are compared; of more, those with the smallest hashes, which are the same in every window."""


def stretches(values: npt.NDArray[Any]) -> Groups:
    """The number of each window's stretch, shape (N,): windows that share rows are in one, directly or through others.

    Args:
        values: windows of shape (N, T, channels).
    """
    count, length = values.shape[:2]
    parents = np.arange(count)
    if length < ROWS:
        return parents
    weights = np.random.default_rng(0).normal(size=(ROWS, values.shape[2]))
    places = length - ROWS + 1
    hashes = np.zeros((count, places))
    changing = np.ones((count, places), np.bool_)
    for row in range(ROWS):
        part = values[:, row : row + places].astype(np.float64)
        # Channel by channel: the sum is the same wherever in the window the row lies.
        for channel in range(values.shape[2]):
            hashes += part[:, :, channel] * weights[row, channel]
        if row:
            changing &= (part != values[:, row - 1 : row - 1 + places]).any(axis=2)
    windows = np.broadcast_to(np.arange(count)[:, None], hashes.shape)[changing]
    found = hashes[changing]
    if len(found) > MOST:
        mixed = found.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        chosen = mixed <= np.partition(mixed, MOST)[MOST]
        windows, found = windows[chosen], found[chosen]
    order = np.argsort(found, kind="stable")
    same = found[order][1:] == found[order][:-1]
    pairs = np.unique(np.stack([windows[order][:-1][same], windows[order][1:][same]], axis=1), axis=0)
    for one, two in pairs.tolist():
        first, second = sorted((_root(parents, one), _root(parents, two)))
        parents[second] = first
    return np.unique([_root(parents, window) for window in range(count)], return_inverse=True)[1].astype(np.int64)


def describe_shared(training: npt.NDArray[Any], validation: npt.NDArray[Any]) -> list[str]:
    """A note on the windows of a file of its own that share rows with training windows, directly or through others.

    Args:
        training: windows of shape (N, T, channels).
        validation: windows of the same T and channels.
    """
    numbers = stretches(np.concatenate([training, validation]))
    shared = int(np.isin(numbers[len(training) :], numbers[: len(training)]).sum())
    if not shared:
        return []
    return [
        f"{shared:,} of {len(validation):,} validation windows share rows with training windows, so the score says little "
        "about new recordings"
    ]


def _root(parents: npt.NDArray[np.int64], window: int) -> int:
    while parents[window] != window:
        parents[window] = parents[parents[window]]
        window = int(parents[window])
    return window
