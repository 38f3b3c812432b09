"""Npz: one array out of an .npz file that may come from anywhere; nothing is unpacked, nothing of Python is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def member(file: Any, name: str) -> npt.NDArray[Any]:
    """The array of a name in what `numpy.load(..., allow_pickle=False)` has opened.

    Raises:
        ValueError: if it is no array, holds Python objects, or says that it is larger than memory.
    """
    try:
        value = file[name]
    except MemoryError as error:
        raise ValueError(f"{name} does not fit into memory: {str(error) or 'none is left'}") from None
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is no array")
    return value
