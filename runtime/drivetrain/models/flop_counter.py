"""Counts the FLOPs of a forward pass: matrix products, convolutions and attention."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    register_flop_formula,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)


def _register_attention() -> None:
    """Register attention on a CPU in torch's counter, because not every release has it."""

    def count(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    def count_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]

    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    for operation, formula in ((forward, count), (backward, count_backward)):
        if operation not in flop_registry:
            register_flop_formula(operation)(formula)


_register_attention()


def count_operation(operation: Any, arguments: Sequence[Any], keywords: dict[str, Any], outputs: Any) -> int:
    """Count the FLOPs of one operation; 0 if it has no matrix product."""
    formula = flop_registry.get(operation)
    return formula(*arguments, **keywords, out_val=outputs) if formula else 0


def count_flops() -> FlopCounterMode | FlopCounter:
    """Return a context whose `get_total_flops()` returns the number of FLOPs inside it.

    torch's own counter imports torch's compiler, which takes as long as torch; it is used if the compiler is loaded.
    """
    return FlopCounterMode(display=False) if "torch._dynamo" in sys.modules else FlopCounter()


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of each operation with the formulas of torch's counter."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def get_total_flops(self) -> int:
        """Return the FLOPs so far."""
        return self.flops

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a mode that the compiler has to skip imports the compiler

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and add its FLOPs; an operation made of others adds their FLOPs."""
        keywords = kwargs or {}
        with self:
            outputs = func.decompose(*args, **keywords)
        if outputs is not NotImplemented:
            return outputs
        outputs = func(*args, **keywords)
        self.flops += count_operation(func._overloadpacket, args, keywords, outputs)
        return outputs
