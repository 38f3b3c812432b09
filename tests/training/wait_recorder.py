"""A device that says where the host waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")


class WaitRecorder(TorchDispatchMode):
    """Notes every copy to or from the device that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.copies, self.waits, self.results = 0, list[str](), 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        if function is torch.ops.aten._to_copy.default and target is not None and args[0].device != target:
            self.copies += 1
            if not kwargs.get("non_blocking"):
                self.waits.append(f"{tuple(args[0].shape)} to {target}")
            if args[0].is_meta:  # torch would refuse: there is nothing to copy
                self.results += 1
                return torch.empty(args[0].shape, dtype=args[0].dtype)
        return function(*args, **kwargs)
