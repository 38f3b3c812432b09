"""Memory: what an allocator says when it has none left."""

from __future__ import annotations

import torch

# torch.OutOfMemoryError is newer than our oldest torch.
_ERRORS: tuple[type[BaseException], ...] = (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))
_WORDS = ("can't allocate memory", "not enough memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_exhausted(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    return isinstance(error, _ERRORS) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _WORDS))
