"""Keeps the number of real tokens of each row of a mask on the host: reading the mask would wait for the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Lengths = npt.NDArray[np.int64]
"""Number of real (not padding) tokens of each row, shape (N,)."""
_ATTRIBUTE = "host_lengths"
"""Attribute of a mask that holds its lengths."""


def attach_lengths(mask: Any, lengths: Lengths) -> None:
    """Store the lengths of a mask (N, tokens) on that tensor; tensors computed from it do not inherit them."""
    setattr(mask, _ATTRIBUTE, lengths)


def find_known_lengths(mask: Tensor) -> Lengths | None:
    """The attached lengths, or those counted on the CPU; None if the mask would have to be read from a GPU."""
    attached: Lengths | None = getattr(mask, _ATTRIBUTE, None)
    return count_tokens(mask) if attached is None and mask.device.type == "cpu" else attached


def read_lengths(mask: Tensor) -> Lengths:
    """The real tokens of each row; waits for the GPU if they must be counted there."""
    lengths = find_known_lengths(mask)
    return count_tokens(mask) if lengths is None else lengths


def count_tokens(mask: Tensor) -> Lengths:
    """Count the real tokens of each row of a mask (N, tokens), on its device."""
    lengths: Lengths = mask.sum(dim=1).cpu().numpy()
    return lengths
