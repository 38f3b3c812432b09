"""Finds the samples that need most memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.data.dataset import Split
from runtime.data.stateless_random import Ids


def longest(split: Split, count: int) -> Ids:
    """The ids of the longest samples; of the first ones if all have the same length."""
    lengths: Any = getattr(split, "lengths", None)
    ids: Ids = np.arange(len(split)) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
    return ids[:count]
