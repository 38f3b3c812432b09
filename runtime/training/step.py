"""Step: one optimizer step on one batch, the part of the loop that optimizations replace.

Plain, it computes in fp32 on the whole batch. `precision` puts autocast and a scaler around it, `channels_last` a
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
from runtime.system import torch_compat, torch_errors
from runtime.training import agreement, compiled_forward
from runtime.training.buffers import Buffers
from runtime.training.grad_scaler import Scaler
from runtime.training.losses import Objective


@dataclass(frozen=True)
class StepResult:
    """What one step gave."""

    loss: float
    grad_norm: float
    finite: bool
    """False if loss or gradient were not finite; the weights are then as they were."""


def outcome_of(loss: Tensor, norm: Tensor) -> StepResult:
    """What a step gave, read in one go: the only time in a step that the host waits for the GPU."""
    values = torch.stack([loss.double(), norm.double()]).tolist()
    return StepResult(values[0], values[1], math.isfinite(values[0]) and math.isfinite(values[1]))


class Step:
    """Forward, backward and update.

    Args:
        model: the network; called with the inputs of a batch.
        optimizer: over its trainable parameters.
        objective: the loss.
        clip_norm: largest gradient norm; None for no clipping.
        device: where all of it lives.
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
        """How a batch is cut into parts of at most so many samples."""
        self.memory_format = torch.contiguous_format
        """Of images on their way into the network, however they were read: kernels round by layout."""
        self.dtype: torch.dtype | None = None
        self.scaler = Scaler()
        self.plain: Callable[..., Any] = model
        """What is computed of the network: all of it, or what is left behind a part whose outputs are kept."""
        self.forward: Callable[..., Any] = model
        self.compile_error: str | None = None
        self.graphs = False
        """Whether compiled kernels are recorded and replayed."""
        self.ranks = ALONE
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.buffers = Buffers(model)
        self.tell: Callable[[str], None] = print
        self.uncompiled: Callable[[str], None] = print
        """Where it is told, once, that compiling failed."""
        self.released: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Around what may be broken off by a signal: compiling takes longer than anyone waits."""

    def __call__(self, batch: Batch, seed: int) -> StepResult:
        """One step, all of it or nothing; `seed` starts this step's dropout.

        If memory runs out, the same batch is tried again in parts of half the size, from the same buffers and draws.

        Raises:
            SpecError: if the network has a buffer in another shape than before training.
            OutOfMemory: if one sample at a time is too much.
            HalfUpdated: if it was the update that ran out; parts are half the size from now on.
        """
        # A forward pass changes BatchNorm's statistics even if the step comes to nothing.
        self.buffers.remember()
        over = self._denominators(batch)
        while True:
            own, trouble = self._tried(batch, over, seed)
            trouble = agreement.agreed(self.ranks, trouble)
            if own is not None and trouble is None:
                break
            assert trouble is not None, "who has no gradients says why"
            self._rewind()
            if not torch_errors.is_exhausted(trouble):
                raise trouble
            self._halve(int(max(row[0] for row in self.ranks.everyone([len(batch)]))), trouble)
        try:
            return self._update(self._together(*own))
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_exhausted(error):
                raise
            self._rewind()
            self._halve(len(batch), error)
            raise torch_errors.HalfUpdated("memory ran out in the middle of an update") from None

    def _tried(
        self, batch: Batch, over: dict[str, Tensor], seed: int
    ) -> tuple[tuple[Tensor, list[Tensor]] | None, BaseException | None]:
        """The loss of this process's part and its gradients, ready to be added up; or what has broken it off."""
        self._seed(seed)
        try:
            with self.released():
                loss = self._gradients(batch, over)
                return (loss, self.ranks.packed(self.parameters)), None
        except KeyboardInterrupt as why:
            return None, why
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_exhausted(error):
                raise
            return None, error.with_traceback(None)

    def _seed(self, seed: int) -> None:
        """Start this step's draws; `torch.manual_seed` does it for devices that are not there, with a stack trace each."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _denominators(self, batch: Batch) -> dict[str, Tensor]:
        """What the whole batch weighs, in all processes together."""
        own = self.objective.denominators(batch.targets)
        return dict(zip(own, self.ranks.total(list(own.values())), strict=True))

    def _together(self, loss: Tensor, packed: list[Tensor]) -> Tensor:
        """The loss of all processes' parts; the parameters then have their gradient."""
        self.ranks.gradients(self.parameters, packed)
        self.ranks.lead(self.buffers.now())
        return self.ranks.total([loss])[0]

    def _gradients(self, batch: Batch, over: dict[str, Tensor]) -> Tensor:
        """The loss of this process's part of the batch; its gradients are left on the parameters."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with self._casts_kept():
            for part in self.parts(batch):
                share = self.objective(self.outputs(part.inputs), part.targets, over)
                self.scaler.scaled(share).backward()  # type: ignore[no-untyped-call]
                loss += share.detach()
        return loss

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """The parts of a batch that go through the network one after another."""
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
            raise torch_errors.one_sample(error) from None
        self.micro_batch = tried // 2
        self.tell(f"memory ran out with {tried} samples at a time; going on with {self.micro_batch}, same batch size")

    def outputs(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs under this step's precision and memory format."""
        with self._cast():
            result: Tensor | Mapping[str, Tensor] = self.forward(*self.laid_out(inputs))
        return result

    def _cast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype) if self.dtype else contextlib.nullcontext()

    @contextlib.contextmanager
    def _casts_kept(self) -> Iterator[None]:
        """The outermost autocast keeps the weights it has cast: here for all parts, and off but for the forward pass."""
        several = self.micro_batch is not None or self.cut is not Batch.split
        if self.dtype is None or not several or not torch_compat.casts_keep_gradients():
            yield
            return
        with self._cast(), torch.autocast(self.device.type, enabled=False):
            yield

    def laid_out(self, inputs: Inputs) -> Inputs:
        """The inputs in this step's memory format."""
        return tuple(x.contiguous(memory_format=self.memory_format) if x.ndim == 4 else x for x in inputs)

    def autocast(self, dtype: torch.dtype, scaler: Scaler | None = None) -> None:
        """Compute the forward pass in a shorter format, and scale its gradients."""
        self.dtype, self.scaler = dtype, scaler or Scaler()

    def fall_back(self) -> None:
        """Compute in fp32 from now on, and scale nothing."""
        self.dtype, self.scaler.fallen = None, True

    def compile(self, *, graphs: bool = False) -> None:
        """Compile the forward pass; if the compiler fails, go on without, loudly and once."""
        self.graphs = graphs
        self.forward = compiled_forward.forward(self, graphs=graphs)
