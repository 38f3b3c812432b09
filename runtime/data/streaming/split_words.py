"""The splits that names of shards speak of: a place with those for training and those for the final test is not one data set."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runtime.data.formats.table_splits import WORDS
from runtime.errors import DataError

_PARTS = re.compile(r"[^a-z]+")


def check(names: Sequence[str], where: str, key: str) -> None:
    """Check that names of shards speak of one split at most.

    Args:
        names: of all shards of a place.
        where: the place.
        key: the spec key that names it.

    Raises:
        DataError: if they speak of several: all of them would be trained on.
    """
    found: dict[str, str] = {}
    words = [set(_PARTS.split(name.lower())) for name in names]
    common = set.intersection(*words) if words else set()  # such as those of the data set's own name
    for name, each in zip(names, words, strict=True):
        for split in _splits(each - common):
            found.setdefault(split, name)
    if len(found) > 1:
        raise DataError(
            f"{key}: the shards in {where} are of several splits: {', '.join(found.values())}",
            "shards of one split at one place",
            "move those of the others to places of their own, and name them with data.validation",
        )


def _splits(words: set[str]) -> list[str]:
    return [split for split, known in WORDS.items() if words & set(known)]
