"""The table against the peers: its figures are what follows from known blocks."""

from __future__ import annotations

import pytest

from benchmarks.contest import figures


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(4, 1, 4), (6, 1, 6), (8, 1, 8), (9, 2, 8), (15, 4, 12)],
)
def test_the_interval_of_a_median(count: int, low: int, high: int) -> None:
    """Order statistics, from the binomial distribution: tables of the sign test give the same places."""
    assert figures.compute_interval([float(number) for number in range(count, 0, -1)]) == (low, high)


def test_ratios_are_of_blocks_of_one_round() -> None:
    """A neighbour that halves the speed of a whole round changes no ratio."""
    assert figures.compute_ratio([4.0, 2.0, 4.0], [2.0, 1.0, 2.0]) == [2.0, 2.0, 2.0]


def test_the_best_peer_is_the_one_that_is_hardest_to_beat() -> None:
    contenders = {
        "drivetrain": {"form": "", "ratio": [1.0, 1.0, 1.0]},
        "slow": {"form": "tuned", "ratio": [3.0, 2.9, 3.1]},
        "fast": {"form": "tuned", "ratio": [1.1, 1.0, 1.2]},
        "other": {"form": "default", "ratio": [0.5, 0.5, 0.5]},
        "dead": {"failed": "no memory"},
    }
    assert figures.find_best(contenders, "tuned") == ("fast", [1.1, 1.0, 1.2])
    assert figures.compute_geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
