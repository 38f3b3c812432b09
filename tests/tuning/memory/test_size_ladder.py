"""The ladder of micro-batches: sizes double while they fit, and end close to the largest that does."""

from __future__ import annotations

import pytest

from drivetrain.tuning.memory.size_search import SizeLadder


def climb(ladder: SizeLadder, largest_that_fits: int) -> list[int]:
    """The sizes that are tried."""
    tried_sizes = []
    while (size := ladder.choose_next()) is not None:
        tried_sizes.append(size)
        ladder.record(size, fits=size <= largest_that_fits)
        assert len(tried_sizes) < 60
    return tried_sizes


@pytest.mark.parametrize("most", [1, 7, 64, 300])
@pytest.mark.parametrize("largest_that_fits", [1, 3, 20, 75, 299, 1000])
def test_the_largest_is_close_to_what_fits(most: int, largest_that_fits: int) -> None:
    ladder = SizeLadder(most)
    tried_sizes = climb(ladder, largest_that_fits)
    assert ladder.largest <= min(most, largest_that_fits) <= 1.2 * ladder.largest + 1
    assert max(tried_sizes) <= min(most, 2 * largest_that_fits)


def test_one_sample_may_be_too_much() -> None:
    ladder = SizeLadder(64)
    assert climb(ladder, 0) == [1]
    assert ladder.largest == 0


def test_sizes_double_and_the_distance_is_halved() -> None:
    assert climb(SizeLadder(1000), 20) == [1, 2, 4, 8, 16, 32, 24, 20]
    assert climb(SizeLadder(50), 64) == [1, 2, 4, 8, 16, 32, 50]


def test_the_smallest_size_of_a_network_with_batchnorm() -> None:
    assert SizeLadder(64, min_size=2).choose_next() == 2
    assert SizeLadder(1, min_size=2).choose_next() == 1
