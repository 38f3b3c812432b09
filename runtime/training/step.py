"""One optimizer step on one batch, the part of the training that optimizations change.

By default it computes in fp32 on the whole batch. `precision` adds autocast and gradient scaling, `channels_last` a
memory format, `compile` a compiled forward pass, `micro_batch` a split; the code below stays the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from runtime.data import stateless_random
from runtime.data.custom.loss_division import too_large
from runtime.data.dataset import Batch, Inputs
from runtime.distributed import batch_digest
from runtime.errors import SpecError
from runtime.job.train import Fp16
from runtime.models.buffers import Buffers
from runtime.system import torch_compat, torch_errors, torch_settings
from runtime.training import agreement, fused_update, gradient_norm
from runtime.training.compiled_forward import CompiledForward
from runtime.training.grad_scaler import Scaler
from runtime.training.losses import Objective
from runtime.training.step_options import Seeded, SeededPart, StepOptions, StepState, largest, parts_of
from runtime.training.step_result import StepResult, result_of

Denominators = Callable[[], dict[str, Tensor]]
"""Gives the sums of weights of the whole batch by head; the first call waits for the other processes."""


@dataclass(frozen=True, eq=False)
class Step:
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

    def configured(self, **changes: Any) -> Step:
        """The same step with other options."""
        return replace(self, options=replace(self.options, **changes))

    def autocast(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> Step:
        """The same step with its forward pass under autocast, and its gradients scaled if `scaling` is given."""
        return self.configured(dtype=dtype, scaler=Scaler(scaling))

    def compile(self, *, graphs: bool = False) -> Step:
        """The same step with its forward pass compiled; if the compiler fails, it continues without, reported once."""
        options = self.options
        made = CompiledForward(options.forward, graphs=graphs, report=options.report_compile)
        return self.configured(compiled=made)

    def use_micro_batch(self, samples: int | None) -> None:
        """Set the micro-batch size; None for the whole batch."""
        self.state.micro_batch = samples

    def forget(self) -> None:
        """Forget the last step, whose result may not have been read: the run goes back to before it."""
        self.state.last = None

    def fall_back(self) -> None:
        """Compute in fp32 without scaling from now on."""
        self.state.fallen_back = self.scaler.fallen = True

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch size; None for the whole batch."""
        return self.state.micro_batch

    @property
    def dtype(self) -> torch.dtype | None:
        """The autocast dtype of the forward pass; None for fp32."""
        return None if self.state.fallen_back else self.options.dtype

    @property
    def scaler(self) -> Scaler:
        """The scaling of the gradients."""
        return self.options.scaler

    @property
    def compiled(self) -> bool:
        """Whether the forward pass is compiled, and the compiler has not failed."""
        return self.options.compiled is not None and self.options.compiled.failure is None

    @property
    def graphs(self) -> bool:
        """Whether compiled kernels are recorded as a CUDA graph and replayed."""
        return self.compiled and self.options.compiled is not None and self.options.compiled.graphs

    @property
    def compile_error(self) -> str | None:
        """Why compilation failed."""
        return self.options.compiled.failure if self.options.compiled else None

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
        return self.update(self.computed(batch, parts), largest(parts))

    def computed(self, batch: Batch, seed: Seeded) -> Tensor:
        """The loss of the whole batch, over all processes, and its gradients on the parameters, without an update; raises
        as `__call__`.
        """
        # A forward pass changes BatchNorm's statistics even if the step fails.
        self.buffers.remember()
        over = self._denominators(batch)
        parts = parts_of(len(batch), seed)
        self.state.parts = len(parts)
        ranks, exchange = self.options.ranks, self.options.exchange
        while True:
            exchange.begin(self.model, self.parameters)
            loss, trouble = self._tried(batch, over, parts)
            own = batch_digest.number_of(batch.ids)
            whole, notes = exchange.finish(loss, [agreement.gravity(trouble), largest(parts), own])
            trouble = agreement.gravest(trouble, [int(note[0]) for note in notes])
            if whole is not None and trouble is None:
                buffers = ranks.start_broadcast(self.buffers.now())
                exchange.collect()
                buffers()
                self.state.samples_of = [note[2] for note in notes]
                return whole
            exchange.drop()
            self._rewind()
            assert trouble is not None, "who has no gradients says why"
            if torch_errors.is_out_of_memory(trouble):
                self._halve(int(max(note[1] for note in notes)), trouble)
            elif not isinstance(trouble, agreement.ComputeAgain):
                raise trouble

    def abstain(self, trouble: BaseException) -> NoReturn:
        """Take part in the sums of a step without a batch, because of a problem that this process has met before it.

        Raises:
            BaseException: the problem that counts for all processes.
        """
        if self.options.ranks.count == 1:
            raise trouble
        self.buffers.remember()
        self._started(self.objective.no_denominators())
        exchange = self.options.exchange
        exchange.begin(self.model, self.parameters)
        _, notes = exchange.finish(None, [agreement.gravity(trouble), 0, 0])
        exchange.drop()
        self._rewind()
        found = agreement.gravest(trouble, [int(note[0]) for note in notes])
        assert found is not None, "there is at least this problem"
        raise found

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
            if self.options.divided:
                raise agreement.out_of_memory(self.options.ranks, self.micro_batch or size) from None
            self._rewind()
            self._halve(size, error)
            raise agreement.HalfUpdated("out of memory in the middle of an update") from None

    def _tried(
        self, batch: Batch, over: Denominators, parts: Sequence[SeededPart]
    ) -> tuple[Tensor | None, BaseException | None]:
        """The loss of this process's shard, whose gradients are being summed over processes; or what interrupted it."""
        try:
            with self.options.interruptible(), self.options.ranks.watched():
                loss = self._gradients(batch, over, parts)
        except KeyboardInterrupt as why:
            return None, why
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
        if self.options.exchange.late:
            return None, agreement.ComputeAgain("a gradient came after its bucket had been sent")
        return loss, None

    def _seed(self, seed: int) -> None:
        """Seed all generators that a network may use; `torch.manual_seed` would seed those of absent devices too, with a
        stack trace each.
        """
        stateless_random.seed_globally(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _denominators(self, batch: Batch) -> Denominators:
        """Begin to sum the weights of the whole batch over all processes; the forward pass does not wait for them."""
        denominators = self.objective.denominators(batch.targets)
        if self.state.share != 1:
            denominators = self.objective.shared(denominators, self.state.share)
        return self._started(denominators)

    def _started(self, own: Mapping[str, Tensor]) -> Denominators:
        if self.state.samples is not None and self.objective.is_unweighted:
            # Made on the device: a copy from the host would wait for it.
            samples = torch.full((), self.state.samples, dtype=torch.float64, device=self.device)
            return lambda: dict.fromkeys(own, samples)
        sums = self.options.ranks.start_sums(list(own.values()))
        return lambda: dict(zip(own, sums(), strict=True))

    def _gradients(self, batch: Batch, over: Denominators, parts: Sequence[SeededPart]) -> Tensor:
        """The loss of this process's shard of the batch; gradients are accumulated on the parameters, and the last
        micro-batch sends them.

        Each part begins with the same buffers. The first one comes last, and its buffers stay: in rank 0, whose buffers
        all processes get, that is the first part of the batch, however many ranks there are.
        """
        first, *others = self._cut(batch, parts)
        with self._kernels(), self._casts_kept():
            loss = self._no_loss()
            for _ in range(self._lacking(part for _, part in (first, *others))):
                self._idle_pass(batch)
            for seed, part in others:
                self._seed(seed)
                loss = sum((self._backward(micro_batch, over) for micro_batch in self.micro_batches(part)), loss)
                self.buffers.rewind()
            self._seed(first[0])
            *earlier, last = self.micro_batches(first[1])
            loss = sum((self._backward(micro_batch, over) for micro_batch in earlier), loss)
            with self.options.exchange.sending():
                return loss + self._backward(last, over)

    def _lacking(self, parts: Iterable[Batch]) -> int:
        """How many passes this process has to add to those over its own samples, if all must compute as many."""
        if not self.options.divided:
            return 0
        own = sum(len(list(self.micro_batches(part))) for part in parts)
        return int(max(row[0] for row in self.options.ranks.all_gather([own]))) - own

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

    def _no_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        return torch_settings.only_deterministic_kernels() if self.state.strict else contextlib.nullcontext()

    def micro_batches(self, batch: Batch) -> Iterable[Batch]:
        """The micro-batches of a batch, or of a part of it."""
        size = self.micro_batch or len(batch)
        if self.options.least > 1 and 1 < size < len(batch) and len(batch) % size == 1:
            return batch.split_evenly(len(batch) // size)
        return self.options.splitter(batch, size)

    def _update(self, loss: Tensor) -> StepResult:
        self.scaler.unscale(self.parameters)
        norm = gradient_norm.clip(self.parameters, self.clip_norm, self.options.ranks)
        result = result_of(loss, norm, self._updates_on_device(), self.scaler.update)
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
            fused_update.begin_late(self.optimizer)
            self.optimizer.step()

    def _updates_on_device(self) -> bool:
        """Whether the device itself can leave everything as it was if numbers are not finite, so that the host need not
        wait for them.
        """
        return (
            not self.options.divided
            and self.state.on_device
            and fused_update.is_possible(self.optimizer)
            and self.buffers.are_in_place()
        )

    def _update_if(self, finite: Tensor) -> None:
        """Update weights, buffers and scale if `finite`, else restore them, without a number read by the host."""
        with fused_update.only_if(self.optimizer, finite):
            self._optimize()
        self.buffers.keep_if(finite)
        self.scaler.update_if(finite)

    def _rewind(self) -> None:
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _halve(self, size: int, error: BaseException) -> None:
        tried = min(self.micro_batch or size, size)
        if obstacle := self.objective.indivisible:
            raise too_large(f"out of memory with {tried} samples at once", obstacle) from None
        if tried <= self.options.least:
            raise torch_errors.out_of_memory_error(error, tried) from None
        self.use_micro_batch(max(self.options.least, tried // 2))
        self.options.report_memory(
            f"out of memory with micro-batch {tried}; continuing with {self.micro_batch}, same batch size"
        )

    def outputs(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs, with this step's precision and memory format."""
        with self.options.phase("forward"), self.cast():
            result: Tensor | Mapping[str, Tensor] = self._forward(self.laid_out(inputs))
        return result

    def outputs_in_fp32(self, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
        """The network's outputs as an evaluation of the stored model computes them."""
        with self.options.phase("forward"):
            result: Tensor | Mapping[str, Tensor] = self._forward(self.laid_out(inputs))
        return result

    def _forward(self, inputs: Inputs) -> Any:
        compiled = self.options.compiled
        if compiled is None or not self._worth_compiling(inputs):
            return self.options.forward(*inputs)
        return compiled(*inputs, replay=not self.micro_batch and self.state.parts == 1)

    def _worth_compiling(self, inputs: Inputs) -> bool:
        """Whether training meets these shapes often: not those of an evaluation, nor of the smaller last batch of an
        epoch. Each would be compiled for as long again.
        """
        whole = self.micro_batch or self.options.batch_size
        return torch.is_grad_enabled() and (whole is None or len(inputs[0]) == whole)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Autocast as in the forward pass; nothing in fp32."""
        if self.dtype is None:
            return contextlib.nullcontext()
        # Divided weights are whole only while a block computes; the cache would keep its copy of them for longer.
        return torch.autocast(self.device.type, self.dtype, cache_enabled=not self.options.divided)

    @contextlib.contextmanager
    def _casts_kept(self) -> Iterator[None]:
        """Keep the outermost autocast's cache of cast weights for all parts and micro-batches, and turn autocast off outside of
        the forward pass.
        """
        several = self.micro_batch is not None or self.state.parts > 1 or self.options.splitter is not Batch.split
        if self.dtype is None or not several or self.options.divided or not torch_compat.casts_keep_gradients():
            yield
            return
        with self.cast(), torch.autocast(self.device.type, enabled=False):
            yield

    def laid_out(self, inputs: Inputs) -> Inputs:
        """The inputs in this step's memory format."""
        return tuple(x.contiguous(memory_format=self.options.memory_format) if x.ndim == 4 else x for x in inputs)
