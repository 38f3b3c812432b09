"""Weights: reading a safetensors file that may come from anywhere.

The format itself can run nothing. What is left to harm is a header that costs more memory and time than its file.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

MOST_HEADER = 16 << 20
"""Bytes; a hundred thousand tensors take about ten million."""


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU.

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is no safetensors file, or its header is too long.
    """
    if not path.is_file():  # a pipe would let us wait for ever
        raise ValueError("it is not there" if not path.exists() else "it is no file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MOST_HEADER:
        raise ValueError(f"its header has {length} bytes, more than {MOST_HEADER}")
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None
