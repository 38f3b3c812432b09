"""Finds windows that share rows with other windows, as sliding windows over one recording do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.partition import Groups, find_root

PLACE_ROWS = 4
"""Number of consecutive rows that identify a place in a recording; each must differ from the row before."""
MAX_PLACES = 2_000_000
"""Largest number of places that are compared. If there are more, the places with the smallest hashes are chosen, so
that equal places are chosen in every window.
"""


def number_stretches(values: npt.NDArray[Any]) -> Groups:
    """Number the stretches of windows (N, T, channels) that share rows, directly or through others; shape (N,).

    Such windows, cut from one recording, would leak the answer if they were on both sides of a split.
    """
    count, length = values.shape[:2]
    if length < PLACE_ROWS:
        return np.arange(count)
    # A place is recognized by a hash of its rows: a sum with fixed weights, which differ by row and channel.
    weights = np.random.default_rng(0).normal(size=(PLACE_ROWS, values.shape[2]))
    places = length - PLACE_ROWS + 1
    hashes = np.zeros((count, places))
    is_changing = np.ones((count, places), np.bool_)
    for row in range(PLACE_ROWS):
        shifted_rows = values[:, row : row + places].astype(np.float64)
        # Channels are added one by one, so that rounding does not depend on the place of the row in the window.
        for channel in range(values.shape[2]):
            hashes += shifted_rows[:, :, channel] * weights[row, channel]
        if row:
            is_changing &= (shifted_rows != values[:, row - 1 : row - 1 + places]).any(axis=2)
    window_of_place = np.broadcast_to(np.arange(count)[:, None], hashes.shape)[is_changing]
    row_hashes = hashes[is_changing]
    # Places are chosen by their hash, so that equal places are either all chosen or all skipped.
    if len(row_hashes) > MAX_PLACES:
        mixed_hashes = row_hashes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        is_sampled = mixed_hashes <= np.partition(mixed_hashes, MAX_PLACES)[MAX_PLACES]
        window_of_place, row_hashes = window_of_place[is_sampled], row_hashes[is_sampled]
    # Windows with equal hashes are joined, directly or through other windows.
    order = np.argsort(row_hashes, kind="stable")
    is_same_hash = row_hashes[order][1:] == row_hashes[order][:-1]
    pairs = np.unique(
        np.stack([window_of_place[order][:-1][is_same_hash], window_of_place[order][1:][is_same_hash]], axis=1), axis=0
    )
    parents = list(range(count))
    for one, two in pairs.tolist():
        first, second = sorted((find_root(parents, one), find_root(parents, two)))
        parents[second] = first
    roots = [find_root(parents, window) for window in range(count)]
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def describe_shared(training: npt.NDArray[Any], validation: npt.NDArray[Any]) -> list[str]:
    """Return a note on validation windows (N, T, channels) that share rows with training windows, also indirectly."""
    numbers = number_stretches(np.concatenate([training, validation]))
    shared = int(np.isin(numbers[len(training) :], numbers[: len(training)]).sum())
    if not shared:
        return []
    return [
        f"{shared:,} of {len(validation):,} validation windows share rows with training windows, so the score says little "
        "about new recordings"
    ]
