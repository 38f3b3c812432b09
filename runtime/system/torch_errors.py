"""Memory: what an allocator says when it has none left."""

from __future__ import annotations

import torch

from runtime.errors import OutOfMemory

# torch.OutOfMemoryError is newer than our oldest torch.
_ERRORS: tuple[type[BaseException], ...] = (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))
_WORDS = ("can't allocate memory", "not enough memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class HalfUpdated(Exception):
    """Memory ran out in the middle of an update: some weights are new and some old, so the run must go back."""


def is_exhausted(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    return isinstance(error, _ERRORS) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _WORDS))


def one_sample(error: BaseException) -> OutOfMemory:
    """What is said when there is nothing left to split."""
    return OutOfMemory(
        f"memory ran out with one sample at a time: {str(error).splitlines()[0][:160]}",
        "a network and samples that fit",
        "raise limits.memory, or take a smaller network",
    )
