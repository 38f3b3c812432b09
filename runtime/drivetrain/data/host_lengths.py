"""How many real tokens the rows of a mask have, as the host knows it: to read a mask from a GPU is to wait for the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Lengths = npt.NDArray[np.int64]
_ATTRIBUTE = "host_lengths"


def note(mask: Any, lengths: Lengths) -> None:
    """Note the lengths of a mask (N, tokens) on that tensor; a tensor that is computed from it does not have them."""
    setattr(mask, _ATTRIBUTE, lengths)


def known(mask: Tensor) -> Lengths | None:
    """The real tokens of each row as far as the host knows them; None if the mask would have to be read from a GPU."""
    noted: Lengths | None = getattr(mask, _ATTRIBUTE, None)
    return counted(mask) if noted is None and mask.device.type == "cpu" else noted


def of(mask: Tensor) -> Lengths:
    """The real tokens of each row; waits for the GPU if only that knows them."""
    lengths = known(mask)
    return counted(mask) if lengths is None else lengths


def counted(mask: Tensor) -> Lengths:
    """The real tokens of each row, counted where the mask is."""
    lengths: Lengths = mask.sum(dim=1).cpu().numpy()
    return lengths
