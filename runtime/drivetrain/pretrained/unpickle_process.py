"""The sandboxed process that reads a pickle checkpoint and writes its tensors as safetensors, as a child of `convert`.

python -m drivetrain.pretrained.unpickle_process FILE OUT

It has no network, cannot start programs, and its memory, time and files are limited. The pickle may create tensors and
plain containers only. The last line of output is JSON: what was written, or what was wrong.
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
from typing import Any, NoReturn

import psutil

from drivetrain.errors import DataError

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
"""Keys under which training scripts store a network beside other things."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes that wrappers of a network add to every name."""
MAX_CPU_SECONDS = 600
"""CPU seconds."""
SPARE_MEMORY_BYTES = 2 << 30
"""Bytes of memory beyond what the file needs."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_FORBIDDEN = ("socket.", "subprocess.", "ctypes.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
_SAVE = "on the machine where the file was created, save only the weights: torch.save(model.state_dict(), FILE)"


def main(file: Path, out: Path) -> dict[str, object]:
    """Sandbox this process, read `file`, write `out`; returns what was written."""
    shut = _no_network()
    import safetensors.torch
    import torch

    _no_programs()
    _limit(file.stat().st_size)
    tensors, left_out = name_tensors(_read(torch, file))
    ready = {name: _apart(torch, name, tensor) for name, tensor in tensors.items()}
    safetensors.torch.save_file(_unshare(ready), out, metadata={"format": "pt"})
    return {"tensors": len(ready), "left_out": left_out, "shut_off": shut}


def _no_network() -> str:
    """Move to a new network namespace, which has no interfaces; returns the result in words."""
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is None:
        return "sockets blocked in the process (this system has no network namespaces)"
    if unshare(_NEW_NETWORK) == 0 or unshare(_NEW_USER | _NEW_NETWORK) == 0:
        return "a network namespace without interfaces"
    return f"sockets blocked in the process ({os.strerror(ctypes.get_errno()).lower()} for a network namespace)"


def _no_programs() -> None:
    """From now on this process cannot open sockets, start programs or call foreign functions."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)


def _limit(size: int) -> None:
    now = psutil.Process().memory_info().vms
    for kind, most in (
        (resource.RLIMIT_AS, now + 3 * size + SPARE_MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 2 * size + (16 << 20)),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _read(torch: Any, file: Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        _refuse(f"{file} needs far more memory than its size", "a checkpoint about as large as its tensors", _SAVE)
    except Exception as error:  # the reader passes on any error that a broken file causes
        _refuse(f"{file} {_reason(error)}", "a file of tensors in containers: dict, list, numbers, text", _SAVE)


def _reason(error: Exception) -> str:
    """Why a file was refused; the reader's own message suggests trusting the file."""
    if class_name := re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error)):
        return f"refers to {class_name[1].rstrip('.')}, which is not a tensor; it was not executed"
    if "Unsupported operand" in str(error):
        return "is not a pickle written by torch; nothing in it was executed"
    return "cannot be read as a checkpoint of torch"


def name_tensors(data: Any) -> tuple[dict[str, object], list[str]]:
    """The tensors of a checkpoint by name, and the names of other entries, which are left out.

    Raises:
        DataError: if there are none, or if other objects are mixed with them.
    """
    left_out: list[str] = []
    while inner := next((key for key in WRAPPERS if _network(data, key)), None):
        left_out += [str(key) for key in data if key != inner]
        data = data[inner]
    if not isinstance(data, Mapping):
        _refuse(f"the file holds a {type(data).__name__}", "tensors by name: a state_dict", _SAVE)
    leaves = dict(_leaves(data, ""))
    non_tensors = [f"{name} ({type(value).__name__})" for name, value in leaves.items() if not hasattr(value, "layout")]
    if non_tensors or not leaves:
        listed = ", ".join(non_tensors[:5]) or "nothing"
        _refuse(f"the file holds {listed} where tensors should be", "tensors by name: a state_dict", _SAVE)
    return _plain(leaves), left_out


def _network(data: object, key: str) -> bool:
    return isinstance(data, Mapping) and isinstance(data.get(key), Mapping) and bool(data[key])


def _leaves(data: Mapping[object, object], start: str) -> Iterator[tuple[str, object]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _plain(tensors: dict[str, object]) -> dict[str, object]:
    """Remove the prefixes of wrappers that all names share."""
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _apart(torch: Any, name: str, tensor: Any) -> object:
    """A tensor in a form that safetensors can write."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        _refuse(
            f"{name} is a tensor of another kind: {tensor.dtype}, {tensor.layout}, {tensor.device}",
            "dense tensors",
            "convert it where the file was made",
        )
    return tensor.detach().contiguous()


def _unshare(tensors: dict[str, Any]) -> dict[str, Any]:
    """Copies of tied weights, since safetensors has no aliases."""
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    return tensors


def _refuse(description: str, possible: str, action: str) -> NoReturn:
    raise DataError(description, possible, action)


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
    except DataError as error:
        print(json.dumps({"error": [error.given, error.possible, error.action]}))
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(json.dumps({"error": [f"{sys.argv[1]} cannot be converted: {error}", "", ""]}))
