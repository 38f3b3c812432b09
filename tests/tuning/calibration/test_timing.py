"""Timing in turn: the ratio is that of the work, and a hopeless variant costs one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from drivetrain.tuning.paired_timing import MIN_ROUNDS, ROUNDS, time_variants


class Work:
    """Steps of a known length, without any clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def __call__(self, count: int) -> float:
        self.calls += count
        return self.seconds * count


def time_works(until: float = float("inf"), **seconds: float) -> tuple[dict[str, Work], Callable[[str, str], Any]]:
    works = {name: Work(length) for name, length in seconds.items()}
    timing = time_variants(works, until)
    return works, timing.ratio


def test_the_ratio_is_that_of_the_seconds() -> None:
    _, ratio = time_works(a=0.01, b=0.005, c=0.02)
    pairs = [("b", "a"), ("c", "a"), ("b", "c")]
    assert [ratio(*pair)["ratio"] for pair in pairs] == pytest.approx([2.0, 0.5, 4.0])


def test_a_hopeless_variant_is_timed_once() -> None:
    works, ratio = time_works(a=0.01, b=1.0)
    assert works["b"].calls == 2
    assert ratio("b", "a")["ratio"] == pytest.approx(0.01)


def test_after_the_deadline_only_the_fewest_rounds_are_made() -> None:
    works, ratio = time_works(time.monotonic() - 1, a=0.01, b=0.005)
    assert works["a"].calls == 2 + MIN_ROUNDS
    assert ratio("b", "a")["pairs"] == MIN_ROUNDS
    assert time_works(a=0.01, b=0.005)[0]["a"].calls == 2 + ROUNDS


def test_what_was_not_timed_has_no_ratio() -> None:
    assert time_works(a=0.01)[1]("b", "a") is None
