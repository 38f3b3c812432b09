"""Counts the FLOPs of a forward pass: matrix products, convolutions and attention."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry


def count_flops() -> FlopCounterMode | FlopCounter:
    """A context whose `get_total_flops()` is the number of FLOPs inside it.

    torch's own counter imports torch's compiler, which takes as long as torch itself; it is used where the compiler is loaded.
    """
    return FlopCounterMode(display=False) if "torch._dynamo" in sys.modules else FlopCounter()


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts as torch's counter does, by its formula for each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def get_total_flops(self) -> int:
        """The FLOPs until now."""
        return self.flops

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a mode that the compiler must skip imports it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and add its FLOPs; one made of others adds theirs."""
        keywords = kwargs or {}
        with self:
            outputs = func.decompose(*args, **keywords)
        if outputs is not NotImplemented:
            return outputs
        outputs = func(*args, **keywords)
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **keywords, out_val=outputs)
        return outputs
