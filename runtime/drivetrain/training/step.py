"""One optimizer step on one batch, the part of the training that optimizations change.

By default it computes in fp32 on the whole batch. `precision` adds autocast and gradient scaling, `channels_last` a
memory format, `compile` a compiled forward pass, `micro_batch` a split; the code below stays the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed import batch_parts
from drivetrain.job.train import Fp16
from drivetrain.models.buffers import Buffers
from drivetrain.system import torch_errors
from drivetrain.system.fault_points import fault_point
from drivetrain.training import weight_update
from drivetrain.training.compiled_forward import CompiledForward
from drivetrain.training.losses import Objective
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.peers import ComputeAgain
from drivetrain.training.step_options import (
    SeededPart,
    SeedOrParts,
    StepOptions,
    StepResult,
    StepState,
    count_largest_part,
    list_parts,
    stack_loss_and_norm,
)
from drivetrain.training.weight_update import StepUpdate

MAX_EXACT_FLOAT32 = 1 << 24
"""float32 represents every whole number up to this one."""
Denominators = Callable[[], dict[str, Tensor]]
"""Returns the sum of sample weights of the whole batch by head; the first call waits for the other processes."""


@dataclass(frozen=True, eq=False)
class Step(StepUpdate):
    """Forward, backward and update. Its attributes are fixed; `with_options` makes another step that shares its state."""

    model: nn.Module
    """The network, whose buffers a failed step restores."""
    optimizer: torch.optim.Optimizer
    """Of all parameters that are trained in any epoch."""
    objective: Objective
    """The loss of all heads."""
    clip_norm: float | None
    """Largest gradient norm; None for no clipping."""
    device: torch.device
    """Where network and batches are."""
    options: StepOptions
    state: StepState = field(default_factory=StepState)
    parameters: list[nn.Parameter] = field(init=False)
    buffers: Buffers = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", [p for group in self.optimizer.param_groups for p in group["params"]])
        object.__setattr__(self, "buffers", Buffers(self.model))

    def with_options(self, **changes: Any) -> Self:
        """The same step with other options."""
        return replace(self, options=replace(self.options, **changes))

    def autocast(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> Self:
        """The same step with its forward pass under autocast, and its gradients scaled if `scaling` is given."""
        return self.with_options(dtype=dtype, scaler=Scaler(scaling))

    def compile(self, *, graphs: bool = False) -> Self:
        """The same step with its forward pass compiled; if the compiler fails, it continues without, reported once."""
        options = self.options
        forward = CompiledForward(options.forward, graphs=graphs, report=options.report_compile)
        return self.with_options(compiled=forward)

    def forget_last_step(self) -> None:
        """Forget the last step, whose result may not have been read, before a checkpoint is restored."""
        self._drop_recordings()
        self.state.last_result = None

    def fall_back_to_fp32(self) -> None:
        """Compute in fp32 without scaling from now on."""
        self._drop_recordings()
        self.state.fell_back = self.scaler.fell_back = True

    def __call__(self, batch: Batch, seed: SeedOrParts) -> StepResult:
        """Train one step, completely or not at all, on the parts of a batch that this process computes.

        If memory runs out, the batch is tried again in micro-batches of half the size, with the same buffers and random
        numbers.

        Raises:
            SpecError: if a buffer of the network has another shape than before training.
            OutOfMemory: if a single sample is too much, or the batch is and its loss cannot be split.
            HalfUpdated: if memory ran out in the update; micro-batches have half the size from now on.
        """
        parts = list_parts(len(batch), seed)
        replayed = self.try_replay(batch, parts)
        return replayed or self.update(self.compute_gradients(batch, parts), count_largest_part(parts))

    def try_replay(self, batch: Batch | None, parts: Sequence[SeededPart]) -> StepResult | None:
        """Replay a recording of a whole step, with its update; returns None if the step must be computed."""
        if batch is None or not self.options.captured:
            return None
        result = self.options.captured(self, batch, parts)
        if result is not None:
            self.state.part_count, self.state.sample_hashes = 1, [batch_parts.hash_samples(batch.ids)]
            self.state.last_result = result
        return result

    def compute_on_device(self, batch: Batch, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Train a step on a batch in one part, like `compute_gradients` and `update`, but no number is read by the host: a
        CUDA graph can record it. The caller seeds the generators; `rates` are those of the parameter groups, float32.

        Returns:
            Loss and gradient norm, shape (2,), and whether both are finite, shape ().
        """
        self.buffers.remember_content()
        with self._restrict_kernels():
            loss = self.objective(self.outputs(batch.inputs), batch.targets, self._start_denominators(batch)())
            self.scaler.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        self.scaler.unscale(self.parameters)
        norm = weight_update.clip_gradients(self.parameters, self.clip_norm)
        values, finite = stack_loss_and_norm(loss, norm)
        with weight_update.rates_from_device(self.optimizer, rates):
            self._update_on_device(finite)
        self.optimizer.zero_grad(set_to_none=True)
        return values, finite

    def compute_gradients(self, batch: Batch | None, seed: SeedOrParts) -> Tensor:
        """Compute the gradients of the whole batch, over all processes; returns its loss, and raises as `__call__`.

        A process with a problem has no batch: it contributes zeros to the sums, and all raise the most serious problem.
        """
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        denominators, peers = self._start_denominators(batch), self.options.peers
        parts = list_parts(0 if batch is None else len(batch), seed)
        self.state.part_count, exchange = len(parts), self.options.exchange
        while True:
            loss = None
            # Gradients that other code has left, such as the step of a second network, are none of this batch.
            for parameter in self.parameters:
                parameter.grad = None
            exchange.begin(self.model, self.parameters)
            if batch is not None:
                try:
                    # Raises at once if a signal has come before.
                    with self.options.interruptible():
                        loss = self._accumulate_gradients(batch, denominators, parts)
                except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
                    loss = None  # an interrupt may come when it is computed
                    self._keep_problem(error)
                else:
                    # This gradient is missing in the sum of its bucket; in the next try the bucket waits for it.
                    if exchange.late:
                        peers.problem = ComputeAgain("a gradient came after its bucket had been sent")
            # These numbers of each process travel beside the gradients.
            sample_hash = 0.0 if batch is None else batch_parts.hash_samples(batch.ids)
            total_loss, notes = exchange.finish(loss, [peers.gravity, count_largest_part(parts), sample_hash])
            problem = peers.choose_gravest([int(note[0]) for note in notes])
            if total_loss is not None and problem is None:
                self._collect_gradients([note[2] for note in notes])
                return total_loss
            assert problem is not None, "a process without gradients has a problem"
            self._drop_gradients(problem, int(max(note[1] for note in notes)))

    def _collect_gradients(self, sample_hashes: list[float]) -> None:
        # All processes continue with rank 0's buffers, which travel while the gradients are collected.
        finish_broadcast = self.options.peers.ranks.start_broadcast(self.buffers.list_current())
        self.options.exchange.collect()
        finish_broadcast()
        self.state.sample_hashes = sample_hashes

    def _drop_gradients(self, problem: BaseException, largest_part: int) -> None:
        """Undo the step, and raise the problem of all processes, unless they can try again."""
        self.options.exchange.drop()
        self._discard_step()
        # All have agreed on the problem, so all try the same batch again in the same way, or none does.
        if torch_errors.is_out_of_memory(problem):
            self._halve_micro_batch(largest_part, problem)
        elif not isinstance(problem, ComputeAgain):
            raise problem

    def _start_denominators(self, batch: Batch | None) -> Denominators:
        """Start the sum of sample weights over all processes; the forward pass does not wait for it."""
        # Whether the loss is divided by the number of samples, which is known without asking the other processes.
        if self.state.batch_samples is not None and self.objective.is_unweighted:
            exact_dtype = torch.float32 if self.state.batch_samples <= MAX_EXACT_FLOAT32 else torch.float64
            # Created on the device: a copy from the host would wait for the device.
            samples = torch.full((), self.state.batch_samples, dtype=exact_dtype, device=self.device)
            by_head = dict.fromkeys(self.objective.losses, samples)
            return lambda: by_head
        objective = self.objective
        local_sums = objective.zero_denominators() if batch is None else objective.denominators(batch.targets)
        if self.state.loss_share != 1:
            local_sums = objective.scale_denominators(local_sums, self.state.loss_share)
        wait_for_sums = self.options.peers.ranks.start_sums(list(local_sums.values()))
        return lambda: dict(zip(local_sums, wait_for_sums(), strict=True))

    def _accumulate_gradients(self, batch: Batch, denominators: Denominators, parts: Sequence[SeededPart]) -> Tensor:
        """Accumulate the gradients of this process's shard on the parameters; the last micro-batch sends them.

        Returns the loss of the shard, a scalar.
        """
        fault_point("gradients")
        with self._restrict_kernels(), self._share_cast_weights():
            loss = torch.zeros((), dtype=torch.float64, device=self.device)
            for micro_batch, is_last in self._split_batch(batch, parts):
                with self.options.exchange.sending(is_last):
                    share = self.objective(self.outputs(micro_batch.inputs), micro_batch.targets, denominators())
                    self.scaler.scale_loss(share).backward()  # type: ignore[no-untyped-call]
                    loss = loss + share.detach()
                    del share  # and its graph, before the next forward pass
            return loss

    def _split_batch(self, batch: Batch, parts: Sequence[SeededPart]) -> Iterator[tuple[Batch, bool]]:
        """The micro-batches of this process's shard, and whether each is the last; seeds the generators for each part.

        Every part starts with the same buffers. The first part is computed last, so its buffers stay; all processes then
        get those of rank 0, however many there are.
        """
        ends = itertools.accumulate(part.samples for part in parts)
        shards = [batch.between(end - part.samples, end) for part, end in zip(parts, ends, strict=True)]
        first, *others = zip(parts, shards if len(parts) > 1 else [batch], strict=True)
        for part, shard in others:
            self.seed_generators(part.seed)
            yield from ((micro_batch, False) for micro_batch in self.micro_batches(shard))
            self.buffers.rewind()
        self.seed_generators(first[0].seed)
        *earlier, last = self.micro_batches(first[1])
        yield from ((micro_batch, False) for micro_batch in earlier)
        yield last, True
