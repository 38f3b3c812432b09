"""Reads safetensors files, also into networks, and writes them without a second copy in memory.

The format cannot execute code. Reading limits the header's size, because a forged header could exhaust memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from drivetrain.data.decoded_size import free_memory
from drivetrain.errors import CheckpointError
from drivetrain.pretrained.folder import LARGE_WEIGHTS
from drivetrain.system.fault_points import fault_point
from drivetrain.system.units import format_bytes

Tensors = Mapping[str, Tensor]
MAX_HEADER_BYTES = 16 << 20
"""Size of the longest header that is read; a header of a hundred thousand tensors takes about ten million bytes."""


class TooLargeWeights(ValueError):
    """The file does not fit into memory."""


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name onto the CPU.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not a safetensors file, its header is too long, or it does not fit into memory.
    """
    if not path.is_file():  # reading a pipe could block forever
        raise ValueError("it is not there" if not path.exists() else "it is no file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, more than {MAX_HEADER_BYTES}")
    # A file with holes takes little disk space and may be larger than the memory.
    size, free = path.stat().st_size, free_memory()
    try:
        if size <= free:
            return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None
    except MemoryError:
        pass
    raise TooLargeWeights(f"it takes {format_bytes(size)}, and {format_bytes(free)} of memory are free")


def read_or_refuse(path: Path, refuse: Callable[[str, str, str], Exception], action: str = "copy it again") -> Tensors:
    """Read like `read`; `refuse` makes the error from a description, the possible values, and an action.

    Raises:
        CheckpointError: if the file does not fit into memory.
    """
    try:
        return read(path)
    except (OSError, ValueError) as error:
        if isinstance(error, TooLargeWeights):
            raise CheckpointError(f"{path} cannot be read: {error}", *LARGE_WEIGHTS) from None
        raise refuse(f"{path} cannot be read: {error}", "a complete file", action) from None


def load(network: nn.Module, weights: Tensors, fresh: Collection[str] = ()) -> dict[str, str]:
    """Load all tensors except the names in `fresh`; returns problems by name, and loads nothing if there are any."""
    expected = network.state_dict()
    body = {name: value.shape for name, value in expected.items() if name not in fresh}
    misfits = {
        name: f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, expected {tuple(shape)}"
        for name, shape in body.items()
        if name not in weights or weights[name].shape != shape
    }
    if not misfits:
        network.load_state_dict(expected | {name: weights[name] for name in body})
    return misfits


_DTYPE_NAMES = {
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
"""Names of dtypes in the format."""
_ALIGNMENT_BYTES = 8
"""Number of bytes that the header's length is a multiple of."""


def write(path: Path, tensors: Tensors) -> None:
    """Write a file tensor by tensor and fsync it; the library's writer would hold the whole file in memory.

    Tensors that share memory, such as tied weights, are written once per name.

    Raises:
        OSError: if the file cannot be written.
        CheckpointError: if the format does not support the dtype of a tensor.
    """
    fault_point("write tensors")
    with path.open("wb") as file:
        for piece in encode(tensors):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def encode(tensors: Tensors) -> Iterator[memoryview]:
    """Yield the bytes of a file: its header, then each tensor.

    Raises:
        CheckpointError: if the format does not support the dtype of a tensor.
    """
    # Largest elements come first, as in the library's writer, so each tensor is aligned to its element size.
    rows = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, value in rows:
        if value.dtype not in _DTYPE_NAMES:
            raise CheckpointError(
                f"{name} is of type {str(value.dtype).removeprefix('torch.')}",
                "types that safetensors has: floats up to 64 bit, complex64, integers, bool",
                "keep it in one of these",
            )
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _DTYPE_NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, value in rows:
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
