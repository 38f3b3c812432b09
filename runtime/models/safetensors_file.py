"""Weights: safetensors files, written without a copy in memory, and read wherever they come from.

The format itself can run nothing. What is left to harm is a header that costs more memory and time than its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from runtime.errors import CheckpointError

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


_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.bool: "BOOL",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Types by the names that the format has for them."""
_ALIGNED = 8
"""Bytes that the header's length is a multiple of."""


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file tensor by tensor; it is on the disk when this returns, with the rights that other files of ours have.

    The library's own writer holds all of the file in memory. Tensors that share memory, as tied weights do, are written
    once each.

    Raises:
        OSError: if it cannot be written.
        CheckpointError: if the format has no name for the type of a tensor.
    """
    # The largest elements first, as the library does, so that each tensor begins at a multiple of its element's size.
    rows = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, value in rows:
        if value.dtype not in _KINDS:
            raise CheckpointError(
                f"{name} is of type {str(value.dtype).removeprefix('torch.')}",
                "types that safetensors has: floats up to 64 bit, complex64, integers, bool",
                "keep it in one of these",
            )
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, value in rows:
            flat = value.detach().to("cpu").contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
