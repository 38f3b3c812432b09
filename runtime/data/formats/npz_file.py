"""Reads one array of an untrusted .npz file; nothing is written to disk, nothing is unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def member(file: Any, name: str) -> npt.NDArray[np.generic]:
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


def shapes(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Shape and dtype of every array of a file, read from the headers only.

    Raises:
        ValueError: if a member is no array.
        OSError, zipfile.BadZipFile: if the file cannot be read.
    """
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, kind = read(file)
            found[name.removesuffix(".npy")] = (shape, kind)
    return found
