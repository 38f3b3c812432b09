"""The ladder of micro-batches: nothing is tried that would pass the ceiling, and it ends close below it."""

from __future__ import annotations

import itertools

import pytest

from drivetrain.tuning.memory.size_search import SizeLadder


def climb(ladder: SizeLadder, floor: int, sample_bytes: int, batch: int = 0) -> list[int]:
    """The sizes that are tried where a step holds at least `floor`, else `batch` and so much for each sample."""
    tried_sizes = []
    while (size := ladder.choose_next()) is not None:
        tried_sizes.append(size)
        ladder.record(size, ladder.base + max(floor, batch + sample_bytes * size))
        assert len(tried_sizes) < 60
    return tried_sizes


@pytest.mark.parametrize(
    ("most", "floor", "sample_bytes", "batch", "ceiling"),
    [
        *itertools.product((1, 7, 64, 300), (0, 5_000), (1, 37, 400), (0, 900), (10_000, 100_000)),
        (1000, 0, 10, 0, 10_000),
    ],
)
def test_never_above_the_ceiling_and_close_to_it(
    most: int, floor: int, sample_bytes: int, batch: int, ceiling: int
) -> None:
    base = 3_000
    ladder = SizeLadder(most, base, base + ceiling)
    tried_sizes = climb(ladder, floor, sample_bytes, batch)
    largest_that_fits = max(n for n in range(1, most + 1) if max(floor, batch + sample_bytes * n) <= ceiling)
    assert max(tried_sizes) == ladder.largest <= largest_that_fits
    assert ladder.smallest_failed is None
    assert largest_that_fits <= 1.2 * ladder.largest + 2
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(tried_sizes))


def test_one_sample_may_be_too_much() -> None:
    ladder = SizeLadder(64, 3_000, 13_000)
    assert climb(ladder, 0, 20_000) == [1]
    assert ladder.largest == 0


def test_predictions_are_by_proportion() -> None:
    ladder = SizeLadder(64, 1_000, 9_000)
    assert ladder.choose_next() == 1
    ladder.record(1, 1_400)
    assert (ladder.choose_next(), ladder.predict_peak(2)) == (2, 1_800)
    ladder.record(2, 1_500)
    assert (ladder.choose_next(), ladder.predict_peak(4)) == (4, 2_000)


def test_what_fails_against_the_prediction_is_halved_in_between() -> None:
    ladder = SizeLadder(1000, 0, 1_000)
    for size in (1, 2, 4, 8, 16):
        ladder.record(size, size)
    assert ladder.choose_next() == 32
    ladder.record(32, None)
    assert ladder.choose_next() == 24
    ladder.record(24, 1_001)
    assert ladder.choose_next() == 20
    ladder.record(20, 20)
    assert ladder.choose_next() is None
    assert ladder.largest == 20


def test_the_smallest_size_of_a_network_with_batchnorm() -> None:
    assert SizeLadder(64, 0, 100, min_size=2).choose_next() == 2
    assert SizeLadder(1, 0, 100, min_size=2).choose_next() == 1
