"""Reads one array of an untrusted .npz file; nothing is written to disk, nothing is unpickled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def member(file: Any, name: str) -> npt.NDArray[Any]:
    """The array with this name in what `numpy.load(..., allow_pickle=False)` has opened.

    Raises:
        ValueError: if it is no array, holds Python objects, or claims to be larger than memory.
    """
    try:
        value = file[name]
    except MemoryError as error:
        raise ValueError(f"{name} does not fit into memory: {str(error) or 'out of memory'}") from None
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return value
