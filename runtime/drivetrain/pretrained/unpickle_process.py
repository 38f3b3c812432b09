"""The sandboxed process that reads a pickle checkpoint and writes its tensors as safetensors, as a child of `convert`.

python -m drivetrain.pretrained.unpickle_process FILE OUT

The reader of torch creates tensors and plain containers only. If a file gets around it, the process has no network, starts
no programs, and its memory, time and files are limited; SECURITY.md says what that does not stop. The last line of output
is JSON: what was written, or what was wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from drivetrain.errors import DataError

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
"""Keys under which training scripts store a network next to other objects."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes that wrappers of a network add to the name of each tensor."""
MAX_CPU_SECONDS = 600
"""CPU time that the process may use."""
SPARE_MEMORY_BYTES = 2 << 30
"""Memory that the process may use in addition to three times the file's size."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_FORBIDDEN = ("socket.", "subprocess.", "ctypes.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
_SAVE = "on the machine where the file was created, save only the weights: torch.save(model.state_dict(), FILE)"


def main(file: Path, out: Path) -> dict[str, object]:
    """Sandbox this process, read `file` and write `out`; returns a report for `convert`."""
    network_state = _block_network()
    import safetensors.torch
    import torch

    _block_programs()
    _set_limits(file.stat().st_size)
    tensors, left_out = name_tensors(_read_checkpoint(torch, file))
    dense = {name: _make_dense(torch, name, tensor) for name, tensor in tensors.items()}
    safetensors.torch.save_file(_copy_tied(dense), out, metadata={"format": "pt"})
    return {"tensors": len(dense), "left_out": left_out, "shut_off": network_state}


def _block_network() -> str:
    """Move this process to a network namespace without interfaces; describes the result, for the user."""
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is None:
        return "sockets blocked in the process (this system has no network namespaces)"
    if unshare(_NEW_NETWORK) == 0 or unshare(_NEW_USER | _NEW_NETWORK) == 0:
        return "a network namespace without interfaces"
    return f"sockets blocked in the process ({os.strerror(ctypes.get_errno()).lower()} for a network namespace)"


def _block_programs() -> None:
    """Forbid this process to open sockets, start programs and call foreign functions."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)


def _set_limits(size: int) -> None:
    """Limit memory, CPU time and written bytes of this process; `size` is that of the checkpoint in bytes."""
    used_bytes = psutil.Process().memory_info().vms
    for kind, limit in (
        (resource.RLIMIT_AS, used_bytes + 3 * size + SPARE_MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 2 * size + (16 << 20)),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _read_checkpoint(torch: Any, file: Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        description, possible = (
            f"{file} needs far more memory than its size",
            "a checkpoint about as large as its tensors",
        )
    except Exception as error:  # the reader passes on any error that a broken file causes
        description, possible = f"{file} {_reason(error)}", "a file of tensors in containers: dict, list, numbers, text"
    raise DataError(description, possible, _SAVE)


def _reason(error: Exception) -> str:
    """Why a file was refused; the reader's own message suggests trusting the file."""
    if class_name := re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error)):
        return f"refers to {class_name[1].rstrip('.')}, which is not a tensor; it was not executed"
    if "Unsupported operand" in str(error):
        return "is not a pickle written by torch; nothing in it was executed"
    return "cannot be read as a checkpoint of torch"


def name_tensors(data: Any) -> tuple[dict[str, object], list[str]]:
    """List the tensors of a checkpoint by name, and the names of other entries, which are left out.

    Raises:
        DataError: if there are no tensors, or if other objects are mixed with them.
    """
    left_out: list[str] = []
    while network_key := next((key for key in WRAPPERS if _wraps_network(data, key)), None):
        left_out += [str(key) for key in data if key != network_key]
        data = data[network_key]
    if not isinstance(data, Mapping):
        raise DataError(f"the file holds a {type(data).__name__}", "tensors by name: a state_dict", _SAVE)
    leaves = dict(_flatten(data, ""))
    non_tensors = [f"{name} ({type(value).__name__})" for name, value in leaves.items() if not hasattr(value, "layout")]
    if non_tensors or not leaves:
        listed = ", ".join(non_tensors[:5]) or "nothing"
        raise DataError(f"the file holds {listed} where tensors should be", "tensors by name: a state_dict", _SAVE)
    return _remove_prefixes(leaves), left_out


def _wraps_network(data: object, key: str) -> bool:
    return isinstance(data, Mapping) and isinstance(data.get(key), Mapping) and bool(data[key])


def _flatten(data: Mapping[object, object], start: str) -> Iterator[tuple[str, object]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _remove_prefixes(tensors: dict[str, object]) -> dict[str, object]:
    """Remove the prefixes of wrappers that all names share."""
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _make_dense(torch: Any, name: str, tensor: Any) -> object:
    """Return a tensor in a form that safetensors can write."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise DataError(
            f"{name} is a tensor of another kind: {tensor.dtype}, {tensor.layout}, {tensor.device}",
            "dense tensors",
            "convert it where the file was made",
        )
    return tensor.detach().contiguous()


def _copy_tied(tensors: dict[str, Any]) -> dict[str, Any]:
    """Copy tied weights, since safetensors cannot store two names for the same memory."""
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    return tensors


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
    except DataError as error:
        print(json.dumps({"error": [error.given, error.possible, error.action]}))
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(json.dumps({"error": [f"{sys.argv[1]} cannot be converted: {error}", "", ""]}))
