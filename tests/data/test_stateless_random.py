"""Draws are functions of where we are, and nothing else."""

from __future__ import annotations

import numpy as np

from drivetrain.data import stateless_random


def test_permutation_is_a_function_of_seed_and_epoch() -> None:
    first = stateless_random.shuffle_samples(7, 3, 100)
    assert sorted(first) == list(range(100))
    assert (first == stateless_random.shuffle_samples(7, 3, 100)).all()
    assert (first != stateless_random.shuffle_samples(7, 4, 100)).any()
    assert (first != stateless_random.shuffle_samples(8, 3, 100)).any()


def test_uniform_does_not_depend_on_other_samples() -> None:
    ids = np.arange(50)
    together = stateless_random.draw_uniform(1, "flip", 2, ids, 3)
    alone = np.concatenate([stateless_random.draw_uniform(1, "flip", 2, ids[i : i + 1], 3) for i in range(50)])
    assert (together == alone).all()


def test_uniform_differs_by_seed_purpose_epoch_sample_and_lane() -> None:
    ids = np.arange(1000)
    base = stateless_random.draw_uniform(1, "flip", 2, ids, 2)
    for other in (
        stateless_random.draw_uniform(2, "flip", 2, ids, 2),
        stateless_random.draw_uniform(1, "crop", 2, ids, 2),
        stateless_random.draw_uniform(1, "flip", 3, ids, 2),
        stateless_random.draw_uniform(1, "flip", 2, ids + 1000, 2),
    ):
        assert abs(np.corrcoef(base[:, 0], other[:, 0])[0, 1]) < 0.15
    assert abs(np.corrcoef(base[:, 0], base[:, 1])[0, 1]) < 0.15


def test_uniform_is_uniform() -> None:
    values = stateless_random.draw_uniform(3, "x", 0, np.arange(100_000))[:, 0]
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    chi2 = ((counts - 5000) ** 2 / 5000).sum()
    assert values.min() >= 0
    assert values.max() < 1
    assert chi2 < 50  # 19 degrees of freedom: 50 is beyond one in ten thousand
