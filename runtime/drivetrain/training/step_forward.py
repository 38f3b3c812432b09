"""The forward pass of a training step, with its precision, its memory format and its compiled form, and how it may fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch, Inputs
from drivetrain.models.buffers import Buffers
from drivetrain.system import torch_errors, torch_settings
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.peers import ComputeAgain, out_of_memory_error
from drivetrain.training.step_options import StepOptions, StepState


class StepForward:
    """How a step computes the outputs of its network."""

    device: torch.device
    options: StepOptions
    state: StepState
    buffers: Buffers

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
        """Whether compiled kernels are recorded as a CUDA graph of their own and replayed; not as a part of whole steps."""
        compiled = self.options.compiled
        return compiled is not None and compiled.failure is None and compiled.graphs and not self.records

    @property
    def compile_error(self) -> str | None:
        """Why compilation failed; None if it did not."""
        return self.options.compiled.failure if self.options.compiled else None

    def outputs(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs, with this step's precision and memory format."""
        with self.cast(), self.options.phase("forward"):
            outputs: Tensor | Mapping[str, Tensor] = self._choose_forward(inputs)(*self.lay_out(inputs))
        return outputs

    def outputs_in_fp32(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs without autocast, as an evaluation of the stored model computes them."""
        with self.options.phase("forward"):
            outputs: Tensor | Mapping[str, Tensor] = self._choose_forward(inputs)(*self.lay_out(inputs))
        return outputs

    def _choose_forward(self, inputs: Inputs) -> Callable[..., Any]:
        """The compiled forward pass for the usual size of training, the uncompiled one for all others."""
        compiled, usual_size = self.options.compiled, self.micro_batch or self.options.batch_size
        # Evaluation and an epoch's last batch would each be compiled again.
        is_usual = usual_size is None or usual_size == len(inputs[0])
        if compiled is None or not torch.is_grad_enabled() or not is_usual:
            return self.options.forward
        return partial(compiled, replay=self.graphs and not self.micro_batch)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """The autocast context of the forward pass; in fp32 a context that does nothing."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    @contextlib.contextmanager
    def _share_cast_weights(self) -> Iterator[None]:
        """Cast each weight once for all micro-batches; autocast stays off outside of the forward pass."""
        is_split = self.micro_batch is not None or self.options.splitter is not Batch.split
        if self.dtype is None or not is_split or not torch_settings.casts_keep_gradients():
            yield
            return
        # The outermost autocast owns the cache of cast weights, and clears it at its end.
        with self.cast(), torch.autocast(self.device.type, enabled=False):
            yield

    def lay_out(self, inputs: Inputs) -> Inputs:
        """The inputs, with images in this step's memory format."""
        layout = self.options.memory_format
        return tuple(x.contiguous(memory_format=layout) if isinstance(x, Tensor) and x.ndim == 4 else x for x in inputs)

    def _restrict_kernels(self) -> contextlib.AbstractContextManager[None]:
        if self.state.deterministic_only:
            return torch_settings.require_deterministic_kernels()
        return contextlib.nullcontext()

    def micro_batches(self, batch: Batch) -> Iterable[Batch]:
        """The micro-batches of a batch."""
        size = self.micro_batch or len(batch)
        # A remainder of one sample would be too small for a network that needs two.
        if self.options.min_samples > 1 and 1 < size < len(batch) and len(batch) % size == 1:
            return batch.split_evenly(len(batch) // size)
        return self.options.splitter(batch, size)

    def seed_generators(self, seed: int) -> None:
        """Seed all random generators that a network may use."""
        # torch.manual_seed would also seed those of devices that are absent, and keep a stack trace for each.
        stateless_random.seed_globally(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _keep_problem(self, error: BaseException, samples: int) -> None:
        """Keep an error as this process's problem; raises what no new try of a batch of `samples` can avoid."""
        peers = self.options.peers
        if isinstance(error, KeyboardInterrupt):
            peers.problem = error
        elif not torch_errors.is_out_of_memory(error):
            peers.problem = self._allow_other_kernels(error)
        elif peers.ranks.count > 1:
            raise out_of_memory_error(peers.ranks, self.micro_batch or samples) from None
        else:
            peers.problem = error.with_traceback(None)

    def _allow_other_kernels(self, error: BaseException) -> ComputeAgain:
        """Allow operations without a deterministic kernel if that is what `error` is about, else raise it."""
        operation = torch_settings.find_nondeterministic_operation(error)
        if operation is None or not self.state.deterministic_only:
            raise error
        self.state.deterministic_only = False
        self.options.report_numbers(
            f"{operation} has no deterministic kernel: results are not bit-identical; replace it in the network, or "
            "set train.deterministic: false"
        )
        return ComputeAgain(f"{operation} has no deterministic kernel")
