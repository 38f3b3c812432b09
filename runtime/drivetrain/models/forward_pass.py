"""Computes outputs and loss of a network in a training step, in the precision and memory format of the plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch, Inputs
from drivetrain.data.stateless_random import seed_for_device
from drivetrain.models.compiled_forward import CompiledForward
from drivetrain.models.loss_function import Denominators, LossFunction
from drivetrain.system import torch_settings
from drivetrain.system.fault_points import fault_point


class ForwardPass:
    """Computes outputs and loss of a network. Optimizations set its attributes while a run is assembled.

    Args:
        network: network whose outputs are computed.
        loss: loss of these outputs.
        device: device of network and batches.
    """

    def __init__(self, network: nn.Module, loss: LossFunction, device: torch.device) -> None:
        self.network, self.loss, self.device = network, loss, device
        self.compiled: CompiledForward | None = None
        """`compute`, compiled by torch.compile."""
        self.is_captured = False
        """Whether whole steps are captured as CUDA graphs, which then include the compiled kernels."""
        self.dtype: torch.dtype | None = None
        """dtype of autocast; None for fp32."""
        self.memory_format = torch.contiguous_format
        """Memory layout of images; rounding depends on it."""
        self.micro_batch: int | None = None
        """Number of samples at a time; None for the whole batch."""
        self.usual_size: int | None = None
        """Number of samples of a full batch in this process; None if a pass of any size may be compiled."""
        self.splitter: Callable[[Batch, int], Iterable[Batch]] = Batch.split
        """Function that splits a batch into micro-batches of at most the given number of samples."""
        self.min_samples = 1
        """Minimum number of samples of a pass: two if the network cannot normalize a single sample."""
        self.deterministic_only = False
        """Whether operations without a deterministic kernel are refused."""
        self.seed_generators: Callable[[int], None] = partial(seed_for_device, device)
        """Function that prepares the random generators for a try of a batch."""
        self.phase: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext()
        """Function that returns a context which measures its block as the phase of this name."""
        self.use_whole_network()

    def use_whole_network(self) -> None:
        """Compute all layers on inputs with padding from now on."""
        self.compute: Callable[..., Any] = self.network
        """Function that computes the outputs: the network, or its layers after a cached frozen prefix."""
        self.packed_compute: Callable[..., Any] | None = getattr(self.network, "packed", None)
        """Function that computes the outputs without padding, if the network has one."""
        self.is_packed = False
        """Whether `compute` works without padding."""

    @property
    def is_compiled(self) -> bool:
        """Whether the pass is compiled and the compiler has not failed."""
        return self.compiled is not None and self.compiled.failure is None

    @property
    def compile_error(self) -> str | None:
        """Reason why compilation failed; None if it did not."""
        return self.compiled.failure if self.compiled else None

    @property
    def replays_kernels(self) -> bool:
        """Whether compiled kernels are captured as a CUDA graph of their own and replayed."""
        return self.compiled is not None and self.is_compiled and self.compiled.graphs and not self.is_captured

    def compute_loss(self, micro_batch: Batch, denominators: Denominators) -> Tensor:
        """Compute the contribution of a micro-batch to the loss of its batch; a scalar."""
        with self.cast(), self.phase("forward"):
            outputs = self._choose_computation(micro_batch.inputs)(*self.lay_out(micro_batch.inputs))
        return self.loss.compute(outputs, micro_batch, denominators())

    def outputs(self, inputs: Inputs) -> Any:
        """Compute the outputs for an evaluation, in the precision of the training."""
        with self.cast():
            return self.outputs_in_fp32(inputs)

    def outputs_in_fp32(self, inputs: Inputs) -> Any:
        """Compute the outputs without autocast, as an evaluation of the stored model does."""
        with self.phase("forward"):
            return self._choose_computation(inputs)(*self.lay_out(inputs))

    def _choose_computation(self, inputs: Inputs) -> Callable[..., Any]:
        """Choose the compiled pass for training batches of the usual size, the uncompiled pass for all others."""
        usual_size = self.micro_batch or self.usual_size
        # Evaluation batches and an epoch's last batch would each need another compilation.
        is_usual = usual_size is None or usual_size == len(inputs[0])
        if self.compiled is None or not torch.is_grad_enabled() or not is_usual:
            return self.compute
        return partial(self.compiled, replay=self.replays_kernels and not self.micro_batch)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Return the autocast context, or a context that does nothing for fp32."""
        return contextlib.nullcontext() if self.dtype is None else torch.autocast(self.device.type, self.dtype)

    def lay_out(self, inputs: Inputs) -> Inputs:
        """Put images into the memory format of the plan."""
        layout = self.memory_format
        return tuple(x.contiguous(memory_format=layout) if isinstance(x, Tensor) and x.ndim == 4 else x for x in inputs)

    def split(self, batch: Batch) -> Iterable[Batch]:
        """Split a batch into its micro-batches."""
        size = self.micro_batch or len(batch)
        # A remainder of one sample would be too small for a network that needs two.
        if self.min_samples > 1 and 1 < size < len(batch) and len(batch) % size == 1:
            return batch.split_evenly(len(batch) // size)
        return self.splitter(batch, size)

    @contextlib.contextmanager
    def trying(self, seed: int) -> Iterator[None]:
        """Seed the random numbers for the forward and backward passes of a batch in the block."""
        fault_point("gradients")
        self.seed_generators(seed)
        with self.restrict_kernels(), self._share_cast_weights():
            yield

    def restrict_kernels(self) -> contextlib.AbstractContextManager[None]:
        """Raise in the block if an operation has no deterministic kernel, unless such operations are allowed."""
        if self.deterministic_only:
            return torch_settings.require_deterministic_kernels()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _share_cast_weights(self) -> Iterator[None]:
        """Cast each weight once for all micro-batches; autocast stays off outside of the forward pass."""
        is_split = self.micro_batch is not None or self.splitter is not Batch.split
        if self.dtype is None or not is_split or not torch_settings.casts_keep_gradients():
            yield
            return
        # The outermost autocast owns the cache of cast weights, and clears it at its end.
        with self.cast(), torch.autocast(self.device.type, enabled=False):
            yield
