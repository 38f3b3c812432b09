"""The forward pass of a training step, with its precision, its memory format and its compiled form."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from drivetrain.data.dataset import Batch, Inputs
from drivetrain.system import torch_settings
from drivetrain.training.grad_scaler import Scaler
from drivetrain.training.step_options import StepOptions, StepState


class StepForward:
    """How a step computes the outputs of its network."""

    device: torch.device
    options: StepOptions
    state: StepState

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch size; None for the whole batch."""
        return self.state.micro_batch

    @property
    def dtype(self) -> torch.dtype | None:
        """The autocast dtype of the forward pass; None for fp32."""
        return None if self.state.fell_back else self.options.dtype

    @property
    def scaler(self) -> Scaler:
        """Scales the loss and unscales the gradients in fp16."""
        return self.options.scaler

    @property
    def compiled(self) -> bool:
        """Whether the forward pass is compiled, and the compiler has not failed."""
        return self.options.compiled is not None and self.options.compiled.failure is None

    @property
    def records(self) -> bool:
        """Whether whole steps are recorded and replayed."""
        return self.options.captured is not None and self.options.captured.failure is None

    @property
    def graphs(self) -> bool:
        """Whether compiled kernels are recorded as a CUDA graph and replayed."""
        return self.compiled and self.options.compiled is not None and self.options.compiled.graphs

    @property
    def compile_error(self) -> str | None:
        """Why compilation failed; None if it did not."""
        return self.options.compiled.failure if self.options.compiled else None

    def outputs(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs, with this step's precision and memory format."""
        with self.options.phase("forward"), self.cast():
            outputs: Tensor | Mapping[str, Tensor] = self._forward(self.lay_out(inputs))
        return outputs

    def outputs_in_fp32(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs without autocast, as an evaluation of the stored model computes them."""
        with self.options.phase("forward"):
            outputs: Tensor | Mapping[str, Tensor] = self._forward(self.lay_out(inputs))
        return outputs

    def _forward(self, inputs: Inputs) -> Any:
        compiled = self.options.compiled
        if compiled is None or not self._is_worth_compiling(inputs):
            return self.options.forward(*inputs)
        return compiled(*inputs, replay=not self.micro_batch and self.state.part_count == 1)

    def _is_worth_compiling(self, inputs: Inputs) -> bool:
        """Whether the size is the usual one of training: evaluation and an epoch's last batch would each be compiled again."""
        usual_size = self.micro_batch or self.options.batch_size
        return torch.is_grad_enabled() and (usual_size is None or len(inputs[0]) == usual_size)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """The autocast context of the forward pass; in fp32 a context that does nothing."""
        if self.dtype is None:
            return contextlib.nullcontext()
        # Divided weights are whole only while a block computes; the cache would keep its copy of them for longer.
        return torch.autocast(self.device.type, self.dtype, cache_enabled=not self.options.divided)

    @contextlib.contextmanager
    def _share_cast_weights(self) -> Iterator[None]:
        """Cast each weight once for all parts and micro-batches; autocast stays off outside of the forward pass."""
        is_split = self.micro_batch is not None or self.state.part_count > 1 or self.options.splitter is not Batch.split
        if self.dtype is None or not is_split or self.options.divided or not torch_settings.casts_keep_gradients():
            yield
            return
        # The outermost autocast owns the cache of cast weights, and clears it at its end.
        with self.cast(), torch.autocast(self.device.type, enabled=False):
            yield

    def lay_out(self, inputs: Inputs) -> Inputs:
        """The inputs, with images in this step's memory format."""
        return tuple(x.contiguous(memory_format=self.options.memory_format) if x.ndim == 4 else x for x in inputs)

    def _make_zero_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def _restrict_kernels(self) -> contextlib.AbstractContextManager[None]:
        if self.state.deterministic_only:
            return torch_settings.require_deterministic_kernels()
        return contextlib.nullcontext()

    def micro_batches(self, batch: Batch) -> Iterable[Batch]:
        """The micro-batches of a batch, or of a part of it."""
        size = self.micro_batch or len(batch)
        # A remainder of one sample would be too small for a network that needs two.
        if self.options.min_samples > 1 and 1 < size < len(batch) and len(batch) % size == 1:
            return batch.split_evenly(len(batch) // size)
        return self.options.splitter(batch, size)
