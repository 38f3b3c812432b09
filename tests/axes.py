"""Cases of a test with several axes: every value of every axis, instead of every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random
from typing import Any


def each_once(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return as many cases as the longest axis has values, the values of each axis in an order of its own.

    For rules that look at one axis at a time; where two axes meet in the code, stacked parameters test each pair.
    """
    values = [list(axis) for axis in axes]
    count = max(map(len, values))
    columns = [list(itertools.islice(itertools.cycle(axis), count)) for axis in values]
    for number, column in enumerate(columns):
        Random(number).shuffle(column)
    return list(zip(*columns, strict=True))
