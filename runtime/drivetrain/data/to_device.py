"""Copies values from the host to the device without a synchronization.

`torch.tensor(..., device=...)` and `.to(device)` wait until the GPU has finished its queued work. Here the copy is
queued instead; the host's memory is read before the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def onto(
    device: torch.device, values: Tensor | npt.NDArray[np.generic] | Sequence[float], dtype: torch.dtype | None = None
) -> Tensor:
    """Values as a tensor on `device`, with the dtype of `values` unless `dtype` is given; plain numbers as float32."""
    on_host = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    return on_host.to(device, dtype, non_blocking=True)
