"""One optimizer step on one batch, the part of the training that optimizations change.

By default it computes in fp32 on the whole batch. `precision` adds autocast and gradient scaling, `channels_last` a
memory format, `compile` a compiled forward pass, `micro_batch` a split; the code below stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from drivetrain.data import stateless_random
from drivetrain.data.custom.loss_division import cannot_split_error
from drivetrain.data.dataset import Batch
from drivetrain.data.to_device import onto
from drivetrain.distributed import batch_parts
from drivetrain.errors import SpecError
from drivetrain.job.train import Fp16
from drivetrain.models.buffers import Buffers
from drivetrain.system import torch_errors, torch_settings
from drivetrain.system.fault_points import fault_point
from drivetrain.training import agreement, weight_update
from drivetrain.training.compiled_forward import CompiledForward
from drivetrain.training.grad_scaler import Scaler
from drivetrain.training.losses import Objective
from drivetrain.training.step_forward import StepForward
from drivetrain.training.step_options import (
    SeededPart,
    SeedOrParts,
    StepOptions,
    StepState,
    count_largest_part,
    list_parts,
)
from drivetrain.training.step_result import StepResult, build_result, stack_loss_and_norm

MAX_EXACT_FLOAT32 = 1 << 24
"""float32 represents every whole number up to this one."""
Denominators = Callable[[], dict[str, Tensor]]
"""Returns the sum of sample weights of the whole batch by head; the first call waits for the other processes."""


@dataclass(frozen=True, eq=False)
class Step(StepForward):
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

    def use_micro_batch(self, samples: int | None) -> None:
        """Set the micro-batch size; None for the whole batch."""
        self._drop_recordings()
        self.state.micro_batch = samples

    def forget_last_step(self) -> None:
        """Forget the last step, whose result may not have been read, before a checkpoint is restored."""
        self._drop_recordings()
        self.state.last_result = None

    def fall_back_to_fp32(self) -> None:
        """Compute in fp32 without scaling from now on."""
        self._drop_recordings()
        self.state.fell_back = self.scaler.fell_back = True

    def _drop_recordings(self) -> None:
        if self.options.captured:
            self.options.captured.drop()

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

    def try_replay(self, batch: Batch, parts: Sequence[SeededPart]) -> StepResult | None:
        """Replay a recording of a whole step, with its update; returns None if the step must be computed."""
        result = self.options.captured(self, batch, parts) if self.options.captured else None
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
            loss = self._make_zero_loss() + self._backpropagate(batch, self._start_denominators(batch))
        self.scaler.unscale(self.parameters)
        norm = weight_update.clip_gradients(self.parameters, self.clip_norm, self.options.ranks, divided=False)
        values, finite = stack_loss_and_norm(loss, norm)
        with weight_update.rates_from_device(self.optimizer, rates):
            self._update_on_device(finite)
        self.optimizer.zero_grad(set_to_none=True)
        return values, finite

    def rates_on_device(self) -> Tensor:
        """The learning rates of the parameter groups on the device, shape (groups,), float32."""
        return onto(self.device, [float(group["lr"]) for group in self.optimizer.param_groups], torch.float32)

    def compute_gradients(self, batch: Batch, seed: SeedOrParts) -> Tensor:
        """Compute the gradients of the whole batch, over all processes; returns its loss, and raises as `__call__`."""
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        denominators = self._start_denominators(batch)
        parts = list_parts(len(batch), seed)
        self.state.part_count = len(parts)
        exchange = self.options.exchange
        while True:
            exchange.begin(self.model, self.parameters)
            loss, problem = self._try_gradients(batch, denominators, parts)
            # These numbers of each process travel beside the gradients.
            notes = [agreement.rate_gravity(problem), count_largest_part(parts), batch_parts.hash_samples(batch.ids)]
            total_loss, all_notes = exchange.finish(loss, notes)
            problem = agreement.choose_gravest(problem, [int(note[0]) for note in all_notes])
            if total_loss is not None and problem is None:
                # All processes continue with rank 0's buffers, which travel while the gradients are collected.
                finish_broadcast = self.options.ranks.start_broadcast(self.buffers.list_current())
                exchange.collect()
                finish_broadcast()
                self.state.sample_hashes = [note[2] for note in all_notes]
                return total_loss
            exchange.drop()
            self._discard_step()
            assert problem is not None, "a process without gradients has a problem"
            # All have agreed on the problem, so all try the same batch again in the same way, or none does.
            if torch_errors.is_out_of_memory(problem):
                self._halve_micro_batch(int(max(note[1] for note in all_notes)), problem)
            elif not isinstance(problem, agreement.ComputeAgain):
                raise problem

    def take_part_with_zeros(self, problem: BaseException) -> NoReturn:
        """Contribute zeros to the sums of a step, because of a problem that this process had before it.

        Raises:
            BaseException: the problem that counts for all processes.
        """
        if self.options.ranks.count == 1:
            raise problem
        self.buffers.remember()
        if not self._knows_denominators:
            self._start_sums(self.objective.zero_denominators())
        exchange = self.options.exchange
        exchange.begin(self.model, self.parameters)
        _, notes = exchange.finish(None, [agreement.rate_gravity(problem), 0, 0])
        exchange.drop()
        self._discard_step()
        agreed_problem = agreement.choose_gravest(problem, [int(note[0]) for note in notes])
        assert agreed_problem is not None, "there is at least this problem"
        raise agreed_problem

    def update(self, loss: Tensor, largest_part: int) -> StepResult:
        """Update the weights with the accumulated gradients; `largest_part` is a number of samples.

        Raises:
            HalfUpdated: if memory ran out; micro-batches have half the size from now on.
        """
        try:
            return self._update_weights(loss)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            # The others would wait within the step for this process's part of the weights.
            if self.options.divided:
                raise agreement.out_of_memory_error(self.options.ranks, self.micro_batch or largest_part) from None
            self._discard_step()
            self._halve_micro_batch(largest_part, error)
            raise agreement.HalfUpdated("out of memory in the middle of an update") from None

    def _try_gradients(
        self, batch: Batch, denominators: Denominators, parts: Sequence[SeededPart]
    ) -> tuple[Tensor | None, BaseException | None]:
        """Accumulate the gradients of this process's shard and start their sum; returns the loss, or the problem instead."""
        try:
            with self.options.interruptible(), self.options.ranks.raising_peer_errors():
                loss = self._accumulate_gradients(batch, denominators, parts)
        except KeyboardInterrupt as interrupt:
            return None, interrupt
        except (MemoryError, RuntimeError) as error:
            if torch_errors.is_out_of_memory(error):
                if self.options.divided:
                    samples = self.micro_batch or count_largest_part(parts)
                    raise agreement.out_of_memory_error(self.options.ranks, samples) from None
                return None, error.with_traceback(None)
            operation = torch_settings.find_nondeterministic_operation(error)
            if operation is None or not self.state.deterministic_only:
                raise
            if self.options.divided:
                raise SpecError(
                    f"train.deterministic: {operation} has no deterministic kernel, and where weights are divided "
                    "(optimize.sharding) a step cannot be begun again without that",
                    "operations with deterministic kernels",
                    "replace it in the network, or set train.deterministic: false",
                ) from None
            self.state.deterministic_only = False
            self.options.report_numbers(
                f"{operation} has no deterministic kernel: results are not bit-identical; replace it in the network, or "
                "set train.deterministic: false"
            )
            return None, agreement.ComputeAgain(f"{operation} has no deterministic kernel")
        # This gradient is missing in the sum of its bucket; in the next try the bucket waits for it.
        if self.options.exchange.late:
            return None, agreement.ComputeAgain("a gradient came after its bucket had been sent")
        return loss, None

    def seed_generators(self, seed: int) -> None:
        """Seed all random generators that a network may use."""
        # torch.manual_seed would also seed those of devices that are absent, and keep a stack trace for each.
        stateless_random.seed_globally(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _start_denominators(self, batch: Batch) -> Denominators:
        """Start the sum of sample weights over all processes; the forward pass does not wait for it."""
        if self._knows_denominators:
            assert self.state.batch_samples is not None
            exact_dtype = torch.float32 if self.state.batch_samples <= MAX_EXACT_FLOAT32 else torch.float64
            # Created on the device: a copy from the host would wait for the device.
            samples = torch.full((), self.state.batch_samples, dtype=exact_dtype, device=self.device)
            by_head = dict.fromkeys(self.objective.losses, samples)
            return lambda: by_head
        local_sums = self.objective.denominators(batch.targets)
        if self.state.loss_share != 1:
            local_sums = self.objective.scale_denominators(local_sums, self.state.loss_share)
        return self._start_sums(local_sums)

    @property
    def _knows_denominators(self) -> bool:
        """Whether the loss is divided by the number of samples, and that is known without asking the other processes."""
        return self.state.batch_samples is not None and self.objective.is_unweighted

    def _start_sums(self, local_sums: Mapping[str, Tensor]) -> Denominators:
        wait_for_sums = self.options.ranks.start_sums(list(local_sums.values()))
        return lambda: dict(zip(local_sums, wait_for_sums(), strict=True))

    def _accumulate_gradients(self, batch: Batch, denominators: Denominators, parts: Sequence[SeededPart]) -> Tensor:
        """Accumulate the gradients of this process's shard on the parameters; the last micro-batch sends them.

        Returns the loss of the shard, a scalar. Every part starts with the same buffers. The first part is computed
        last, so its buffers stay; all processes then get those of rank 0, however many there are.
        """
        fault_point("gradients")
        first, *other_parts = self._split_into_parts(batch, parts)
        with self._restrict_kernels(), self._share_cast_weights():
            loss = self._make_zero_loss()
            for _ in range(self._count_missing_passes(part for _, part in (first, *other_parts))):
                self._run_idle_pass(batch)
            for seed, part in other_parts:
                self.seed_generators(seed)
                for micro_batch in self.micro_batches(part):
                    loss = loss + self._backpropagate(micro_batch, denominators)
                self.buffers.rewind()
            self.seed_generators(first[0])
            *earlier, last = self.micro_batches(first[1])
            for micro_batch in earlier:
                loss = loss + self._backpropagate(micro_batch, denominators)
            with self.options.exchange.sending():
                return loss + self._backpropagate(last, denominators)

    def _count_missing_passes(self, parts: Iterable[Batch]) -> int:
        """Passes that this process has to add to those over its own samples, so that all compute the same number."""
        if not self.options.divided:
            return 0
        local_passes = sum(len(list(self.micro_batches(part))) for part in parts)
        return int(max(row[0] for row in self.options.ranks.all_gather([local_passes]))) - local_passes

    def _run_idle_pass(self, batch: Batch) -> None:
        """Forward and backward on a sample of weight 0: the others need this process's part of the weights."""
        outputs = self.outputs(batch.between(0, 1).inputs)
        values = outputs.values() if isinstance(outputs, Mapping) else [outputs]
        torch.stack([(value * 0).sum() for value in values]).sum().backward()  # type: ignore[no-untyped-call]
        self.buffers.rewind()

    def _split_into_parts(self, batch: Batch, parts: Sequence[SeededPart]) -> Iterator[tuple[int, Batch]]:
        """The seed and the samples of each part of this process's shard."""
        start = 0
        for part in parts:
            yield part.seed, batch if len(parts) == 1 else batch.between(start, start + part.samples)
            start += part.samples

    def _backpropagate(self, micro_batch: Batch, denominators: Denominators) -> Tensor:
        """Accumulate the gradients of a micro-batch on the parameters; returns its share of the loss, a scalar."""
        outputs = self.outputs(micro_batch.inputs)
        share = self.objective(outputs, micro_batch.targets, denominators())
        self.scaler.scale_loss(share).backward()  # type: ignore[no-untyped-call]
        return share.detach()

    def _update_weights(self, loss: Tensor) -> StepResult:
        fault_point("update")
        self.scaler.unscale(self.parameters)
        divided = self.options.divided
        norm = weight_update.clip_gradients(self.parameters, self.clip_norm, self.options.ranks, divided=divided)
        result = build_result(loss, norm, self.can_update_on_device(), self.scaler.update)
        if result.on_device:
            self._update_on_device(result.device_finite)
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._update_on_host(result)
        self.state.last_result = result
        return result

    def _update_on_host(self, result: StepResult) -> None:
        if self.state.last_result:
            self.state.last_result.read()
        self.scaler.leave_device()
        if result.finite:
            self._run_optimizer()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._discard_step()

    def _run_optimizer(self) -> None:
        with self.options.phase("optimizer"):
            weight_update.create_missing_momentum(self.optimizer)
            if self.options.captured is None or isinstance(self.optimizer.param_groups[0]["lr"], Tensor):
                self.optimizer.step()
                return
            # Recorded steps round the learning rates to float32, and so must all others.
            with weight_update.rates_from_device(self.optimizer, self.rates_on_device()):
                self.optimizer.step()

    def can_update_on_device(self) -> bool:
        """Whether the device can skip an update with numbers that are not finite, without waiting for the host."""
        return (
            not self.options.divided
            and self.state.prefers_device
            and weight_update.can_skip_update(self.optimizer)
            and self.buffers.are_in_place()
        )

    def _update_on_device(self, finite: Tensor) -> None:
        """Update weights, buffers and scale if `finite`, else restore them; the host reads no number."""
        with weight_update.skip_unless(self.optimizer, finite):
            self._run_optimizer()
        self.buffers.keep_if(finite)
        self.scaler.update_on_device(finite)

    def _discard_step(self) -> None:
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _halve_micro_batch(self, largest_part: int, error: BaseException) -> None:
        samples = min(self.micro_batch or largest_part, largest_part)
        if obstacle := self.objective.split_obstacle:
            raise cannot_split_error(f"out of memory with {samples} samples at once", obstacle) from None
        if samples <= self.options.min_samples:
            raise torch_errors.out_of_memory_error(error, samples) from None
        self.use_micro_batch(max(self.options.min_samples, samples // 2))
        self.options.report_memory(
            f"out of memory with micro-batch {samples}; continuing with {self.micro_batch}, same batch size"
        )
