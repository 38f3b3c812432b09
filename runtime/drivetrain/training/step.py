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
from drivetrain.training.step_options import Seeded, SeededPart, StepOptions, StepState, largest, parts_of
from drivetrain.training.step_result import StepResult, numbers_of, result_of

MAX_EXACT_FLOAT32 = 1 << 24
"""Up to here float32 has every whole number."""
Denominators = Callable[[], dict[str, Tensor]]
"""Gives the sums of weights of the whole batch by head; the first call waits for the other processes."""


@dataclass(frozen=True, eq=False)
class Step(StepForward):
    """Forward, backward and update. Its attributes are fixed; another step with the same state has other options."""

    model: nn.Module
    """The network, whose buffers a failed step restores."""
    optimizer: torch.optim.Optimizer
    """Over its trainable parameters."""
    objective: Objective
    """The loss."""
    clip_norm: float | None
    """Largest gradient norm; None for no clipping."""
    device: torch.device
    """Of the network and the batches."""
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

    def forget(self) -> None:
        """Forget the last step, whose result may not have been read: the run goes back to before it."""
        self._drop_recordings()
        self.state.last = None

    def fall_back(self) -> None:
        """Compute in fp32 without scaling from now on."""
        self._drop_recordings()
        self.state.fallen_back = self.scaler.fallen = True

    def _drop_recordings(self) -> None:
        if self.options.captured:
            self.options.captured.drop()

    def __call__(self, batch: Batch, seed: Seeded) -> StepResult:
        """Train one step, completely or not at all, on the parts of a batch that this process computes.

        If memory runs out, the batch is tried again in micro-batches of half the size, with the same buffers and random
        numbers.

        Raises:
            SpecError: if a buffer of the network has another shape than before training.
            OutOfMemory: if a single sample is too much, or the batch is and its loss cannot be split.
            HalfUpdated: if memory ran out in the update; micro-batches have half the size from now on.
        """
        parts = parts_of(len(batch), seed)
        return self.replay(batch, parts) or self.update(self.compute_gradients(batch, parts), largest(parts))

    def replay(self, batch: Batch, parts: Sequence[SeededPart]) -> StepResult | None:
        """A whole step that was recorded before, with its update; None if it must be computed."""
        result = self.options.captured(self, batch, parts) if self.options.captured else None
        if result is not None:
            self.state.parts, self.state.samples_of = 1, [batch_parts.hash_samples(batch.ids)]
            self.state.last = result
        return result

    def whole(self, batch: Batch, rates: Tensor) -> tuple[Tensor, Tensor]:
        """A step as `compute_gradients` and `update` make it, without anything that the host reads, decides or allocates for longer:
        it can be recorded. The generators are seeded before.

        Args:
            batch: in one part.
            rates: by parameter group, float32.

        Returns:
            Loss and gradient norm, shape (2,), and whether both are finite, shape ().
        """
        self.buffers.remember_content()
        with self._kernels():
            loss = self._no_loss() + self._backward(batch, self._denominators(batch))
        self.scaler.unscale(self.parameters)
        norm = weight_update.clip_gradients(self.parameters, self.clip_norm, self.options.ranks, divided=False)
        values, finite = numbers_of(loss, norm)
        with weight_update.with_rates(self.optimizer, rates):
            self._update_if(finite)
        self.optimizer.zero_grad(set_to_none=True)
        return values, finite

    def rates(self) -> Tensor:
        """The learning rates of the parameter groups on the device, float32."""
        return onto(self.device, [float(group["lr"]) for group in self.optimizer.param_groups], torch.float32)

    def compute_gradients(self, batch: Batch, seed: Seeded) -> Tensor:
        """Compute the gradients of the whole batch, over all processes; returns its loss, and raises as `__call__`."""
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        over = self._denominators(batch)
        parts = parts_of(len(batch), seed)
        self.state.parts = len(parts)
        ranks, exchange = self.options.ranks, self.options.exchange
        while True:
            exchange.begin(self.model, self.parameters)
            loss, problem = self._try_gradients(batch, over, parts)
            ids_number = batch_parts.hash_samples(batch.ids)
            total_loss, notes = exchange.finish(loss, [agreement.gravity(problem), largest(parts), ids_number])
            problem = agreement.gravest(problem, [int(note[0]) for note in notes])
            if total_loss is not None and problem is None:
                # All processes continue with rank 0's buffers, which travel while the gradients are collected.
                buffers = ranks.start_broadcast(self.buffers.now())
                exchange.collect()
                buffers()
                self.state.samples_of = [note[2] for note in notes]
                return total_loss
            exchange.drop()
            self._rewind()
            assert problem is not None, "a process without gradients has a problem"
            # All have agreed on the problem, so all try the same batch again in the same way, or none does.
            if torch_errors.is_out_of_memory(problem):
                self._halve(int(max(note[1] for note in notes)), problem)
            elif not isinstance(problem, agreement.ComputeAgain):
                raise problem

    def abstain(self, problem: BaseException) -> NoReturn:
        """Take part in the sums of a step with zeros, because of a problem that this process had before it.

        Raises:
            BaseException: the problem that counts for all processes.
        """
        if self.options.ranks.count == 1:
            raise problem
        self.buffers.remember()
        if not self._is_counted:
            self._start_sums(self.objective.no_denominators())
        exchange = self.options.exchange
        exchange.begin(self.model, self.parameters)
        _, notes = exchange.finish(None, [agreement.gravity(problem), 0, 0])
        exchange.drop()
        self._rewind()
        agreed_problem = agreement.gravest(problem, [int(note[0]) for note in notes])
        assert agreed_problem is not None, "there is at least this problem"
        raise agreed_problem

    def update(self, loss: Tensor, size: int) -> StepResult:
        """Update the weights with the present gradients; `size` is that of the largest part of the batch.

        Raises:
            HalfUpdated: if memory ran out; micro-batches have half the size from now on.
        """
        try:
            return self._update(loss)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            # The others would wait within the step for this process's part of the weights.
            if self.options.divided:
                raise agreement.out_of_memory(self.options.ranks, self.micro_batch or size) from None
            self._rewind()
            self._halve(size, error)
            raise agreement.HalfUpdated("out of memory in the middle of an update") from None

    def _try_gradients(
        self, batch: Batch, over: Denominators, parts: Sequence[SeededPart]
    ) -> tuple[Tensor | None, BaseException | None]:
        """Compute and begin to sum the gradients of this process's shard; returns its loss, or the problem instead."""
        try:
            with self.options.interruptible(), self.options.ranks.watched():
                loss = self._gradients(batch, over, parts)
        except KeyboardInterrupt as interrupt:
            return None, interrupt
        except (MemoryError, RuntimeError) as error:
            if torch_errors.is_out_of_memory(error):
                if self.options.divided:
                    raise agreement.out_of_memory(self.options.ranks, self.micro_batch or largest(parts)) from None
                return None, error.with_traceback(None)
            operation = torch_settings.operation_without_deterministic_kernel(error)
            if operation is None or not self.state.strict:
                raise
            if self.options.divided:
                raise SpecError(
                    f"train.deterministic: {operation} has no deterministic kernel, and where weights are divided "
                    "(optimize.sharding) a step cannot be begun again without that",
                    "operations with deterministic kernels",
                    "replace it in the network, or set train.deterministic: false",
                ) from None
            self.state.strict = False
            self.options.report_numbers(
                f"{operation} has no deterministic kernel: results are not bit-identical; replace it in the network, or "
                "set train.deterministic: false"
            )
            return None, agreement.ComputeAgain(f"{operation} has no deterministic kernel")
        # Such a gradient is missing in the sum; in the next try its bucket waits for it.
        if self.options.exchange.late:
            return None, agreement.ComputeAgain("a gradient came after its bucket had been sent")
        return loss, None

    def seed(self, seed: int) -> None:
        """Seed all generators that a network may use; `torch.manual_seed` would seed those of absent devices too, with a
        stack trace each.
        """
        stateless_random.seed_globally(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _denominators(self, batch: Batch) -> Denominators:
        """Begin to sum the weights of the whole batch over all processes; the forward pass does not wait for them."""
        if self._is_counted:
            # Made on the device: a copy from the host would wait for it. Such a number is exact in float32.
            assert self.state.samples is not None
            exact = torch.float32 if self.state.samples <= MAX_EXACT_FLOAT32 else torch.float64
            samples = torch.full((), self.state.samples, dtype=exact, device=self.device)
            over = dict.fromkeys(self.objective.losses, samples)
            return lambda: over
        denominators = self.objective.denominators(batch.targets)
        if self.state.share != 1:
            denominators = self.objective.shared(denominators, self.state.share)
        return self._start_sums(denominators)

    @property
    def _is_counted(self) -> bool:
        """Whether the number of samples is known, and all that the loss divides by: no process need ask the others."""
        return self.state.samples is not None and self.objective.is_unweighted

    def _start_sums(self, local_sums: Mapping[str, Tensor]) -> Denominators:
        sums = self.options.ranks.start_sums(list(local_sums.values()))
        return lambda: dict(zip(local_sums, sums(), strict=True))

    def _gradients(self, batch: Batch, over: Denominators, parts: Sequence[SeededPart]) -> Tensor:
        """The loss of this process's shard of the batch; gradients are accumulated on the parameters, and the last
        micro-batch sends them.

        Each part begins with the same buffers. The first one comes last, and its buffers stay: in rank 0, whose buffers
        all processes get, that is the first part of the batch, however many ranks there are.
        """
        fault_point("gradients")
        first, *other_parts = self._cut(batch, parts)
        with self._kernels(), self._casts_kept():
            loss = self._no_loss()
            for _ in range(self._lacking(part for _, part in (first, *other_parts))):
                self._idle_pass(batch)
            for seed, part in other_parts:
                self.seed(seed)
                loss = sum((self._backward(micro_batch, over) for micro_batch in self.micro_batches(part)), loss)
                self.buffers.rewind()
            self.seed(first[0])
            *earlier, last = self.micro_batches(first[1])
            loss = sum((self._backward(micro_batch, over) for micro_batch in earlier), loss)
            with self.options.exchange.sending():
                return loss + self._backward(last, over)

    def _lacking(self, parts: Iterable[Batch]) -> int:
        """How many passes this process has to add to those over its own samples, if all must compute as many."""
        if not self.options.divided:
            return 0
        local_passes = sum(len(list(self.micro_batches(part))) for part in parts)
        return int(max(row[0] for row in self.options.ranks.all_gather([local_passes]))) - local_passes

    def _idle_pass(self, batch: Batch) -> None:
        """Forward and backward on a sample that counts nothing: the others need this process's part of the weights."""
        outputs = self.outputs(batch.between(0, 1).inputs)
        values = outputs.values() if isinstance(outputs, Mapping) else [outputs]
        torch.stack([(value * 0).sum() for value in values]).sum().backward()  # type: ignore[no-untyped-call]
        self.buffers.rewind()

    def _cut(self, batch: Batch, parts: Sequence[SeededPart]) -> Iterator[tuple[int, Batch]]:
        """The parts of this process's shard, each with its seed."""
        start = 0
        for part in parts:
            yield part.seed, batch if len(parts) == 1 else batch.between(start, start + part.samples)
            start += part.samples

    def _backward(self, micro_batch: Batch, over: Denominators) -> Tensor:
        """The loss of a micro-batch; its gradients are accumulated on the parameters."""
        outputs = self.outputs(micro_batch.inputs)
        share = self.objective(outputs, micro_batch.targets, over())
        self.scaler.scaled(share).backward()  # type: ignore[no-untyped-call]
        return share.detach()

    def _update(self, loss: Tensor) -> StepResult:
        fault_point("update")
        self.scaler.unscale(self.parameters)
        norm = weight_update.clip_gradients(
            self.parameters, self.clip_norm, self.options.ranks, divided=self.options.divided
        )
        result = result_of(loss, norm, self.updates_on_device(), self.scaler.update)
        if result.on_device:
            self._update_if(result.device_finite)
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._update_now(result)
        self.state.last = result
        return result

    def _update_now(self, result: StepResult) -> None:
        if self.state.last:
            self.state.last.read()
        self.scaler.leave_device()
        if result.finite:
            self._optimize()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._rewind()

    def _optimize(self) -> None:
        with self.options.phase("optimizer"):
            weight_update.begin_late(self.optimizer)
            if self.options.captured is None or isinstance(self.optimizer.param_groups[0]["lr"], Tensor):
                self.optimizer.step()
                return
            with weight_update.with_rates(self.optimizer, self.rates()):  # rounded as in recorded steps
                self.optimizer.step()

    def updates_on_device(self) -> bool:
        """Whether the device itself can leave everything as it was if numbers are not finite, so that the host need not
        wait for them.
        """
        return (
            not self.options.divided
            and self.state.on_device
            and weight_update.is_possible(self.optimizer)
            and self.buffers.are_in_place()
        )

    def _update_if(self, finite: Tensor) -> None:
        """Update weights, buffers and scale if `finite`, else restore them, without a number read by the host."""
        with weight_update.only_if(self.optimizer, finite):
            self._optimize()
        self.buffers.keep_if(finite)
        self.scaler.update_if(finite)

    def _rewind(self) -> None:
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _halve(self, size: int, error: BaseException) -> None:
        tried = min(self.micro_batch or size, size)
        if obstacle := self.objective.indivisible:
            raise cannot_split_error(f"out of memory with {tried} samples at once", obstacle) from None
        if tried <= self.options.least:
            raise torch_errors.out_of_memory_error(error, tried) from None
        self.use_micro_batch(max(self.options.least, tried // 2))
        self.options.report_memory(
            f"out of memory with micro-batch {tried}; continuing with {self.micro_batch}, same batch size"
        )
