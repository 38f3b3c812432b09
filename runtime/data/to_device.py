"""Transfer: numbers from the host on their way to the device, without waiting for anything that runs there.

`torch.tensor(..., device=...)` and `.to(device)` wait until the GPU has done all that was asked of it before. From here
the copy is queued behind it; the host's memory is read before the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def onto(
    device: torch.device, values: Tensor | npt.NDArray[Any] | Sequence[float], dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers as a tensor on `device`; of the type of `values` unless `dtype` is given, plain numbers as float32."""
    here = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    return here.to(device, dtype, non_blocking=True)
