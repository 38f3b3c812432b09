"""Compiles the forward pass with torch.compile, and falls back to the uncompiled pass if that fails.

By default torch recompiles a network for new shapes and modes eight times, and then silently stops. Here the limit is
higher, and reaching it is reported like any other failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from drivetrain.system import torch_errors

MAX_COMPILATIONS = 32
"""Limit of compilations of one network; texts of many lengths, in training and evaluation, need about ten."""
_original_settings: dict[str, Any] = {}
"""Compiler settings before they were changed here."""


class CompiledForward:
    """A compiled forward pass; if the compiler fails, the uncompiled pass is used, which is reported once.

    Args:
        uncompiled: forward pass to compile.
        graphs: whether to capture CUDA graphs.
        report: function that is called with a description of the failure.
    """

    def __init__(self, uncompiled: Callable[..., Any], *, graphs: bool, report: Callable[[str], None]) -> None:
        self.uncompiled, self.graphs, self.report = uncompiled, graphs, report
        self.failure: str | None = None
        """Reason why the uncompiled forward pass is used instead; None while compilation works."""
        self.compiled = torch.compile(uncompiled)
        self.compiled_with_graphs = torch.compile(uncompiled, mode="reduce-overhead") if graphs else None
        config = torch._dynamo.config
        for name, value in (("recompile_limit", MAX_COMPILATIONS), ("fail_on_recompile_limit_hit", True)):
            _original_settings.setdefault(name, getattr(config, name))
            setattr(config, name, value)
        self.compiler_errors = (
            torch._dynamo.exc.TorchDynamoException,
            torch._dynamo.exc.FailOnRecompileLimitHit,
            torch._inductor.exc.InductorError,
        )

    def __call__(self, *inputs: Tensor, replay: bool) -> Any:
        """Compute the outputs.

        Args:
            inputs: inputs of the network.
            replay: whether a CUDA graph may be replayed: only in training, and only for whole batches, because a
                replay overwrites gradients that are being accumulated. An evaluation would be captured into the same
                memory.
        """
        if self.failure is not None:
            return self.uncompiled(*inputs)
        try:
            return self._replay(inputs) if replay and self.graphs else self.compiled(*inputs)
        except self.compiler_errors as error:
            self.failure = first_line(error)
            if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
                self.failure = f"recompiled {MAX_COMPILATIONS} times because input shapes or modes keep changing"
            self.report(f"compile failed, training continues without it: {self.failure}")
            return self.uncompiled(*inputs)

    def _replay(self, inputs: tuple[Tensor, ...]) -> Any:
        assert self.compiled_with_graphs is not None
        try:
            return _copy_outputs(self.compiled_with_graphs(*inputs))
        except self.compiler_errors:
            raise
        except RuntimeError as error:
            if torch_errors.is_out_of_memory(error):
                raise
            outputs = self.compiled(*inputs)  # an error of the network itself is raised again here
            self.graphs = False
            self.report(f"CUDA graphs failed, training continues with compiled kernels: {first_line(error)}")
            return outputs


def restore_settings() -> None:
    """Restore the compiler's settings from before the first compilation."""
    for name, value in _original_settings.items():
        setattr(torch._dynamo.config, name, value)
    _original_settings.clear()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _copy_outputs(outputs: Any) -> object:
    """Copy the outputs, which the next replay would overwrite."""
    if isinstance(outputs, Mapping):
        return {name: value.clone() for name, value in outputs.items()}
    return outputs.clone()
