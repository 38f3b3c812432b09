"""Reads a pickle of torch and writes its tensors as safetensors, in a limited child process of `convert`.

python -m drivetrain.pretrained.unpickle_process FILE OUT

torch creates only tensors and plain containers here; memory, time and written files are limited.
"""

from __future__ import annotations

import re
import resource
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
"""Keys under which training scripts store a network next to other objects."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes that wrappers of a network add to the name of each tensor."""
MAX_CPU_SECONDS = 600
SPARE_MEMORY_BYTES = 2 << 30
"""Memory that the process may use in addition to three times the file's size."""


class NotTensorsError(Exception):
    """A checkpoint contains something else where tensors should be."""


def main(file: Path, out: Path) -> str:
    """Limit this process, read `file` and write `out`; returns the reason for a failure, or an empty text."""
    import safetensors.torch
    import torch

    set_limits(file.stat().st_size)
    try:
        tensors = name_tensors(torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)))
        addresses: set[int] = set()
        for name, tensor in tensors.items():  # safetensors refuses two names for the same memory
            address = tensor.untyped_storage().data_ptr()
            tensors[name] = tensor.contiguous().clone() if address in addresses else tensor.contiguous()
            addresses.add(address)
        safetensors.torch.save_file(tensors, out, metadata={"format": "pt"})
    except MemoryError:
        return "needs far more memory than its size"
    except Exception as error:  # a broken file can cause any error in torch
        return describe(error)
    return ""


def set_limits(size: int) -> None:
    """Limit memory, CPU time and written bytes of this process; `size` is the size of the checkpoint in bytes."""
    memory = psutil.Process().memory_info().vms + 3 * size + SPARE_MEMORY_BYTES
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 2 * size + (16 << 20)),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def describe(error: Exception) -> str:
    """Describe why a file was refused, without torch's own message, which suggests trusting the file."""
    class_name = re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error))
    if class_name:
        return f"refers to {class_name[1].rstrip('.')}, which is not a tensor; it was not executed"
    if isinstance(error, NotTensorsError):
        return str(error)
    return "is not a pickle of tensors written by torch; nothing in it was executed"


def name_tensors(data: Any) -> dict[str, Any]:
    """Find the tensors of a network in a checkpoint, by name without prefixes; raises NotTensorsError if it has none."""
    while isinstance(data, Mapping):
        wrapper = next((key for key in WRAPPERS if isinstance(data.get(key), Mapping)), None)
        if wrapper is None:
            break
        data = data[wrapper]
    tensors = dict(data) if isinstance(data, Mapping) else {type(data).__name__: data}
    wrong = [f"{name} ({type(value).__name__})" for name, value in tensors.items() if not hasattr(value, "layout")]
    if wrong or not tensors or not isinstance(data, Mapping):
        raise NotTensorsError(f"contains {', '.join(wrong[:5]) or 'nothing'} instead of tensors by name")
    while prefix := next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


if __name__ == "__main__":
    problem = main(Path(sys.argv[1]), Path(sys.argv[2]))
    if problem:
        sys.exit(print(problem) or 3)
