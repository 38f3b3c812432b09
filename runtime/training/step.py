"""One optimizer step on one batch, the part of the training that optimizations change.

By default it computes in fp32 on the whole batch. `precision` adds autocast and gradient scaling, `channels_last` a
memory format, `compile` a compiled forward pass, `micro_batch` a split; the code below stays the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runtime.data.dataset import Batch, Inputs
from runtime.distributed.ranks import ALONE
from runtime.job.train import Fp16
from runtime.models.buffers import Buffers
from runtime.system import torch_compat, torch_errors
from runtime.training import agreement, compiled_forward
from runtime.training.grad_scaler import Scaler
from runtime.training.losses import Objective


@dataclass(frozen=True)
class StepResult:
    """The result of a step."""

    loss: float
    grad_norm: float
    finite: bool
    """False if loss or gradient norm were not finite; the weights are then unchanged."""


def outcome_of(loss: Tensor, norm: Tensor) -> StepResult:
    """Read the result in a single transfer, the only synchronization with the GPU in a step."""
    values = torch.stack([loss.double(), norm.double()]).tolist()
    return StepResult(values[0], values[1], math.isfinite(values[0]) and math.isfinite(values[1]))


class Step:
    """Forward, backward and update.

    Args:
        model: the network; called with the inputs of a batch.
        optimizer: over its trainable parameters.
        objective: the loss.
        clip_norm: largest gradient norm; None for no clipping.
        device: of the network and the batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        clip_norm: float | None,
        device: torch.device,
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.clip_norm, self.device = clip_norm, device
        self.micro_batch: int | None = None
        self.cut: Callable[[Batch, int], Iterable[Batch]] = Batch.split
        """Splits a batch into micro-batches of at most so many samples."""
        self.memory_format = torch.contiguous_format
        """Of images before the forward pass, however they were read: rounding depends on the memory format."""
        self.dtype: torch.dtype | None = None
        self.scaler = Scaler()
        self.plain: Callable[..., Any] = model
        """What is computed of the network: all of it, or what follows a prefix whose outputs are cached."""
        self.forward: Callable[..., Any] = model
        self.compile_error: str | None = None
        self.graphs = False
        """Whether compiled kernels are recorded as CUDA graphs and replayed."""
        self.ranks = ALONE
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.buffers = Buffers(model)
        self.tell: Callable[[str], None] = print
        self.uncompiled: Callable[[str], None] = print
        """Reports, once, that compilation failed."""
        self.released: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Context in which a signal may interrupt: compilation takes longer than a user would wait."""

    def __call__(self, batch: Batch, seed: int) -> StepResult:
        """Train one step, completely or not at all; `seed` seeds this step's dropout.

        If memory runs out, the batch is tried again in micro-batches of half the size, with the same buffers and random
        numbers.

        Raises:
            SpecError: if a buffer of the network has another shape than before training.
            OutOfMemory: if a single sample is too much.
            HalfUpdated: if memory ran out in the update; micro-batches have half the size from now on.
        """
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        over = self._denominators(batch)
        while True:
            own, trouble = self._tried(batch, over, seed)
            trouble = agreement.agreed(self.ranks, trouble)
            if own is not None and trouble is None:
                break
            assert trouble is not None, "who has no gradients says why"
            self._rewind()
            if not torch_errors.is_out_of_memory(trouble):
                raise trouble
            self._halve(int(max(row[0] for row in self.ranks.everyone([len(batch)]))), trouble)
        try:
            return self._update(self._together(*own))
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            self._rewind()
            self._halve(len(batch), error)
            raise agreement.HalfUpdated("out of memory in the middle of an update") from None

    def _tried(
        self, batch: Batch, over: dict[str, Tensor], seed: int
    ) -> tuple[tuple[Tensor, list[Tensor]] | None, BaseException | None]:
        """The loss and packed gradients of this process's shard, ready to be summed over processes; or what interrupted
        it.
        """
        self._seed(seed)
        try:
            with self.released():
                loss = self._gradients(batch, over)
                return (loss, self.ranks.packed(self.parameters)), None
        except KeyboardInterrupt as why:
            return None, why
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            return None, error.with_traceback(None)

    def _seed(self, seed: int) -> None:
        """Seed the generators; `torch.manual_seed` would seed those of absent devices too, with a stack trace each."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _denominators(self, batch: Batch) -> dict[str, Tensor]:
        """Sums of weights for the whole batch, over all processes."""
        own = self.objective.denominators(batch.targets)
        return dict(zip(own, self.ranks.total(list(own.values())), strict=True))

    def _together(self, loss: Tensor, packed: list[Tensor]) -> Tensor:
        """Sum loss and gradients over all processes; the parameters then have their gradients."""
        self.ranks.gradients(self.parameters, packed)
        self.ranks.lead(self.buffers.now())
        return self.ranks.total([loss])[0]

    def _gradients(self, batch: Batch, over: dict[str, Tensor]) -> Tensor:
        """The loss of this process's shard of the batch; gradients are accumulated on the parameters."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with self._casts_kept():
            for part in self.parts(batch):
                share = self.objective(self.outputs(part.inputs), part.targets, over)
                self.scaler.scaled(share).backward()  # type: ignore[no-untyped-call]
                loss += share.detach()
        return loss

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """The micro-batches of a batch."""
        return self.cut(batch, self.micro_batch or len(batch))

    def _update(self, loss: Tensor) -> StepResult:
        self.scaler.unscale(self.parameters)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or float("inf"))
        outcome = outcome_of(loss, norm)
        if outcome.finite:
            self.optimizer.step()
        self.scaler.update(outcome.finite)
        self.optimizer.zero_grad(set_to_none=True)
        if not outcome.finite:
            self._rewind()
        return outcome

    def _rewind(self) -> None:
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _halve(self, size: int, error: BaseException) -> None:
        tried = min(self.micro_batch or size, size)
        if tried == 1:
            raise torch_errors.out_of_memory_error(error) from None
        self.micro_batch = tried // 2
        self.tell(f"out of memory with micro-batch {tried}; continuing with {self.micro_batch}, same batch size")

    def outputs(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs, with this step's precision and memory format."""
        with self._cast():
            result: Tensor | Mapping[str, Tensor] = self.forward(*self.laid_out(inputs))
        return result

    def _cast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, self.dtype) if self.dtype else contextlib.nullcontext()

    @contextlib.contextmanager
    def _casts_kept(self) -> Iterator[None]:
        """Keep the outermost autocast's cache of cast weights for all micro-batches, and turn autocast off outside of
        the forward pass.
        """
        several = self.micro_batch is not None or self.cut is not Batch.split
        if self.dtype is None or not several or not torch_compat.casts_keep_gradients():
            yield
            return
        with self._cast(), torch.autocast(self.device.type, enabled=False):
            yield

    def laid_out(self, inputs: Inputs) -> Inputs:
        """The inputs in this step's memory format."""
        return tuple(x.contiguous(memory_format=self.memory_format) if x.ndim == 4 else x for x in inputs)

    def autocast(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> None:
        """Run the forward pass under autocast, and scale its gradients if `scaling` is given."""
        self.dtype, self.scaler = dtype, Scaler(scaling)

    def fall_back(self) -> None:
        """Compute in fp32 without scaling from now on."""
        self.dtype, self.scaler.fallen = None, True

    def compile(self, *, graphs: bool = False) -> None:
        """Compile the forward pass; if the compiler fails, report it once and continue without."""
        self.graphs = graphs
        self.forward = compiled_forward.forward(self, graphs=graphs)
