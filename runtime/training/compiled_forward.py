"""The forward pass under torch.compile, with a fallback to the plain one that is reported once.

By default torch recompiles a network for new shapes and modes eight times, and then silently stops. Here the limit is
higher, and reaching it is reported like any other failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runtime.system import torch_errors

if TYPE_CHECKING:
    from runtime.training.step import Step

MOST = 32
"""Limit of compilations of one network; texts of many lengths, in training and evaluation, need about ten."""
_before: dict[str, Any] = {}
"""The compiler's settings before they were changed here."""


def forward(step: Step, *, graphs: bool) -> Callable[..., Any]:
    """Compile the forward pass of a step; if the compiler fails, the step continues with the plain one.

    Args:
        step: whose plain forward pass is compiled.
        graphs: whether kernels are recorded as CUDA graphs and replayed. Only in training, and only if a batch is not
            split, since a replay overwrites gradients that are still to be accumulated.
    """
    compiled = torch.compile(step.plain)
    recorded = torch.compile(step.plain, mode="reduce-overhead") if graphs else None
    _go_on_for_longer()
    failures = (
        torch._dynamo.exc.TorchDynamoException,
        torch._dynamo.exc.FailOnRecompileLimitHit,
        torch._inductor.exc.InductorError,
    )

    def replayed(*inputs: Tensor) -> object:
        assert recorded is not None
        try:
            return _kept(recorded(*inputs))
        except failures:
            raise
        except RuntimeError as error:
            if torch_errors.is_out_of_memory(error):
                raise
            found = compiled(*inputs)  # an error of the network itself is raised here again
            step.graphs = False
            step.uncompiled(f"cuda_graphs failed, training continues with compiled kernels: {_line(error)}")
            return found

    def chosen(*inputs: Tensor) -> object:
        try:
            # An evaluation has other batch sizes, and would be recorded into the same memory.
            if step.graphs and not step.micro_batch and torch.is_grad_enabled():
                return replayed(*inputs)
            return compiled(*inputs)
        except failures as error:
            step.forward = step.plain
            step.compile_error = _cause(error)
            step.uncompiled(f"compile failed, training continues without it: {step.compile_error}")
            return step.plain(*inputs)

    return chosen


def undo() -> None:
    """Restore the compiler's settings from before the first compilation."""
    for name, value in _before.items():
        setattr(torch._dynamo.config, name, value)
    _before.clear()


def _go_on_for_longer() -> None:
    config = torch._dynamo.config
    for name, value in (("recompile_limit", MOST), ("fail_on_recompile_limit_hit", True)):
        _before.setdefault(name, getattr(config, name))
        setattr(config, name, value)


def _cause(error: BaseException) -> str:
    if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
        return f"recompiled {MOST} times because input shapes or modes keep changing"
    return _line(error)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _kept(outputs: Any) -> object:
    """Copy the outputs, which the next replay would overwrite."""
    if isinstance(outputs, Mapping):
        return {name: value.clone() for name, value in outputs.items()}
    return outputs.clone()
