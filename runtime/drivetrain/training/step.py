"""One optimizer step on one batch, the part of the training that optimizations change.

By default it computes in fp32 on the whole batch. `precision` adds autocast and gradient scaling, `channels_last` a
memory format, `compile` a compiled forward pass, `micro_batch` a split; the code below stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed import batch_parts
from drivetrain.distributed.batch_parts import WHOLE, BatchShare
from drivetrain.job.train import Fp16
from drivetrain.models.buffers import Buffers
from drivetrain.system import torch_errors
from drivetrain.system.fault_points import fault_point
from drivetrain.training import weight_update
from drivetrain.training.compiled_forward import CompiledForward
from drivetrain.training.losses import Objective
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.peers import ComputeAgain
from drivetrain.training.step_options import StepOptions, StepResult, StepState, stack_loss_and_norm
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

    def __call__(self, batch: Batch, seed: int, share: BatchShare = WHOLE) -> StepResult:
        """Train one step, completely or not at all, on this process's share of a batch.

        If memory runs out in a process that trains alone, the batch is tried again in micro-batches of half the size,
        with the same buffers and random numbers.

        Raises:
            SpecError: if a buffer of the network has another shape than before training.
            OutOfMemory: if a single sample is too much, or the batch is and its loss cannot be split.
            RestartSmaller: if memory ran out in one of several processes.
            HalfUpdated: if memory ran out in the update; micro-batches have half the size from now on.
        """
        replayed = self.try_replay(batch, seed)
        return replayed or self.update(self.compute_gradients(batch, seed, share), len(batch))

    def try_replay(self, batch: Batch | None, seed: int) -> StepResult | None:
        """Replay a recording of a whole step, with its update; returns None if the step must be computed."""
        if batch is None or not self.options.captured:
            return None
        result = self.options.captured(self, batch, seed)
        if result is not None:
            self.state.sample_hashes = [batch_parts.hash_samples(batch.ids)]
            self.state.last_result = result
        return result

    def compute_on_device(self, batch: Batch, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Train a step on a batch, like `compute_gradients` and `update`, but no number is read by the host: a
        CUDA graph can record it. The caller seeds the generators; `rates` are those of the parameter groups, float32.

        Returns:
            Loss and gradient norm, shape (2,), and whether both are finite, shape ().
        """
        self.buffers.remember_content()
        with self._restrict_kernels():
            loss = self.objective(self.outputs(batch.inputs), batch.targets, self._start_denominators(batch, WHOLE)())
            self.scaler.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        self.scaler.unscale(self.parameters)
        norm = weight_update.clip_gradients(self.parameters, self.clip_norm)
        values, finite = stack_loss_and_norm(loss, norm)
        with weight_update.rates_from_device(self.optimizer, rates):
            self._update_on_device(finite)
        self.optimizer.zero_grad(set_to_none=True)
        return values, finite

    def compute_gradients(self, batch: Batch | None, seed: int, share: BatchShare = WHOLE) -> Tensor:
        """Compute the gradients of the whole batch, over all processes; returns its loss, and raises as `__call__`.

        A problem of one process travels with its loss: all drop the step, and raise the most serious one. A process that
        trains alone has no batch if a problem came before it.
        """
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        denominators, peers = self._start_denominators(batch, share), self.options.peers
        if self.options.exchange.wrap(self.model) and self.state.deterministic_only and batch is not None:
            self._try_kernels(batch, denominators, seed)
        while True:
            # Gradients that other code has left, such as the step of a second network, are none of this batch.
            self._forget_gradients()
            loss = None if batch is None else self._try_batch(batch, denominators, seed)
            sample_hash = 0.0 if batch is None else batch_parts.hash_samples(batch.ids)
            missing = torch.zeros((), dtype=torch.float64)
            total, notes = self.options.exchange.finish(
                missing if loss is None else loss, [*peers.notes(), sample_hash]
            )
            problem = peers.choose_gravest(notes)
            if problem is None:
                # All processes continue with rank 0's buffers.
                peers.ranks.broadcast(self.buffers.list_current())
                self.state.sample_hashes = [note[-1] for note in notes]
                return total
            self._discard_step()
            if torch_errors.is_out_of_memory(problem):
                assert batch is not None, "memory ran out in it"
                self._halve_micro_batch(len(batch), problem)
            elif not isinstance(problem, ComputeAgain):
                raise problem

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _try_batch(self, batch: Batch, denominators: Denominators, seed: int) -> Tensor | None:
        """Accumulate the gradients of this process's share; returns its loss, or None with a problem in `peers`."""
        peers, interruptible = self.options.peers, self.options.interruptible
        # A process that left its backward pass would leave the others waiting for its gradients.
        is_alone = peers.ranks.count == 1
        try:
            # Raises at once if a signal has come before.
            with interruptible() if is_alone else peers.ranks.raising_peer_errors():
                loss = self._accumulate_gradients(batch, denominators, seed)
        except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
            self._keep_problem(error, len(batch))
            return None
        if not is_alone:
            with peers.catching(), interruptible():
                pass
        return loss

    def _try_kernels(self, batch: Batch, denominators: Denominators, seed: int) -> None:
        """Compute a micro-batch without the others, to find operations without a deterministic kernel.

        Nobody could leave the exchange of gradients because of one.
        """
        self.seed_generators(seed)
        micro_batch = next(iter(self.micro_batches(batch)))
        try:
            with self._restrict_kernels():
                self._compute_loss(micro_batch, denominators).backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            self._keep_problem(error, len(batch))
            self.options.peers.problem = None
        self._discard_step()

    def _start_denominators(self, batch: Batch | None, share: BatchShare) -> Denominators:
        """Start the sum of sample weights over all processes; the forward pass does not wait for it."""
        # Whether the loss is divided by the number of samples, which is known without asking the other processes.
        if share.samples is not None and self.objective.is_unweighted:
            exact_dtype = torch.float32 if share.samples <= MAX_EXACT_FLOAT32 else torch.float64
            # Created on the device: a copy from the host would wait for the device.
            samples = torch.full((), share.samples, dtype=exact_dtype, device=self.device)
            by_head = dict.fromkeys(self.objective.losses, samples)
            return lambda: by_head
        objective = self.objective
        local_sums = objective.zero_denominators() if batch is None else objective.denominators(batch.targets)
        if share.weight != 1:
            local_sums = objective.scale_denominators(local_sums, share.weight)
        wait_for_sums = self.options.peers.ranks.start_sums(list(local_sums.values()))
        return lambda: dict(zip(local_sums, wait_for_sums(), strict=True))

    def _accumulate_gradients(self, batch: Batch, denominators: Denominators, seed: int) -> Tensor:
        """Accumulate the gradients of this process's share on the parameters; the last micro-batch sends them.

        Returns the loss of the share, a scalar.
        """
        fault_point("gradients")
        self.seed_generators(seed)
        with self._restrict_kernels(), self._share_cast_weights():
            loss = torch.zeros((), dtype=torch.float64, device=self.device)
            micro_batches = list(self.micro_batches(batch))
            for number, micro_batch in enumerate(micro_batches, 1):
                with self.options.exchange.sending(is_last=number == len(micro_batches)):
                    share = self.options.exchange.compute_loss(self._compute_loss, micro_batch, denominators)
                    self.scaler.scale_loss(share).backward()  # type: ignore[no-untyped-call]
                    loss = loss + share.detach()
                    del share  # and its graph, before the next forward pass
            return loss

    def _compute_loss(self, micro_batch: Batch, denominators: Denominators) -> Tensor:
        return self.objective(self.outputs(micro_batch.inputs), micro_batch.targets, denominators())
