"""Reads safetensors files, also into networks, and writes them without a second copy in memory.

The format cannot execute code. Reading limits the header's size, because a forged header could exhaust memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from drivetrain.data.decoded_size import free_memory
from drivetrain.errors import CheckpointError
from drivetrain.pretrained.folder import LARGE_WEIGHTS
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import sync_file
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
        raise ValueError("it is not a file" if path.exists() else "it is missing")
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


def load(network: nn.Module, weights: Tensors, random_names: Collection[str] = ()) -> dict[str, str]:
    """Load all tensors except the names in `random_names`; returns problems by name, and loads nothing if there are any."""
    expected = network.state_dict()
    body = {name: value.shape for name, value in expected.items() if name not in random_names}
    misfits = {
        name: f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, expected {tuple(shape)}"
        for name, shape in body.items()
        if name not in weights or weights[name].shape != shape
    }
    if not misfits:
        network.load_state_dict(expected | {name: weights[name] for name in body})
    return misfits


def write(path: Path, tensors: Tensors) -> None:
    """Write a file and fsync it; the library holds no copy of the tensors.

    Raises:
        OSError: if the file cannot be written.
        CheckpointError: if the format does not support the dtype of a tensor.
    """
    fault_point("write tensors")
    addresses, separate = set[int](), dict[str, Tensor]()
    for name, value in tensors.items():
        tensor = value.detach().cpu().resolve_conj().contiguous()
        # The library refuses tensors that share memory, such as tied weights and slices.
        if tensor.untyped_storage().data_ptr() in addresses or tensor.untyped_storage().nbytes() > tensor.nbytes:
            tensor = tensor.clone()
        addresses.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor
    try:
        path.touch()
        mode = path.stat().st_mode
        safetensors.torch.save_file(separate, path)
        if path.stat().st_mode != mode:
            path.chmod(mode)  # the library lets only the owner read it
    except KeyError as error:
        name = next(name for name, tensor in separate.items() if tensor.dtype == error.args[0])
        raise CheckpointError(
            f"{name} is of type {str(error.args[0]).removeprefix('torch.')}",
            "types that safetensors supports: floats up to 64 bit, complex64, integers, bool",
            "convert it to one of these",
        ) from None
    except safetensors.SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else 0, str(error), str(path)) from None
    sync_file(path)


def holds(path: Path, tensors: Tensors) -> bool:
    """Return whether a file has exactly these tensors, bit by bit; false for a damaged file."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return set(file.keys()) == tensors.keys() and all(
                _have_same_bits(file.get_tensor(name), value) for name, value in tensors.items()
            )
    except (OSError, safetensors.SafetensorError):
        return False


def _have_same_bits(stored: Tensor, value: Tensor) -> bool:
    plain = value.detach().cpu().resolve_conj().contiguous()
    is_alike = (stored.dtype, stored.shape) == (plain.dtype, plain.shape)
    return is_alike and torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (stored, plain)))
