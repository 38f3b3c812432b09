"""Batches of two sources, compared bit by bit."""

from __future__ import annotations

import numpy as np
import torch

from drivetrain.data.dataset import Batch


def assert_equal(one: Batch, two: Batch) -> None:
    assert np.array_equal(one.ids, two.ids)
    for x, y in zip((*one.inputs, *one.targets.values()), (*two.inputs, *two.targets.values()), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)
