"""Trains one optimizer step on one batch: forward pass, backward pass, all-reduce of the gradients, update."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

from drivetrain.data.custom.user_loss import cannot_split_error
from drivetrain.data.dataset import Batch
from drivetrain.distributed import batch_sharding
from drivetrain.distributed.batch_sharding import WHOLE_BATCH, BatchShare
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.job.train import Fp16
from drivetrain.models.compiled_forward import CompiledForward
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.loss_function import Denominators
from drivetrain.system import torch_errors, torch_settings
from drivetrain.system.console import say
from drivetrain.training.captured_step import StepCapture
from drivetrain.training.lockstep import ComputeAgain, HalfUpdated, Lockstep, RankStatus, out_of_memory_error
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.step_result import BatchLoss, StepResult
from drivetrain.training.updater import Updater


class Step:
    """Trains steps, each completely or not at all.

    Args:
        forward: computes outputs and loss.
        updater: clips gradients and updates weights.
        lockstep: ranks that share each batch; None for a process that trains alone.
    """

    def __init__(self, forward: ForwardPass, updater: Updater, lockstep: Lockstep | None = None) -> None:
        self.forward, self.updater, self.lockstep = forward, updater, lockstep or Lockstep()
        self.exchange = GradientExchange(self.lockstep.ranks)
        self.capture: StepCapture | None = None
        """CUDA graphs of whole steps; None without them."""
        self.interruptible: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Context that lets a signal interrupt the step: a compilation takes longer than a user would wait."""
        self.report: Callable[[str, str], None] = lambda kind, text: say(text)
        """Function that records an event, of kind memory, compile or numbers."""

    def use_micro_batch(self, samples: int | None) -> None:
        """Set the micro-batch size; None for the whole batch."""
        self._drop_captures()
        self.forward.micro_batch = samples

    def scale_losses(self, scaling: Fp16) -> None:
        """Scale the loss, so that gradients in fp16 do not underflow."""
        self.updater.scaler = Scaler(scaling)

    def compile(self, *, graphs: bool = False) -> None:
        """Compile the forward pass; if the compiler fails, training continues without it, which is reported once."""
        report = functools.partial(self.report, "compile")
        self.forward.compiled = CompiledForward(self.forward.compute, graphs=graphs, report=report)

    def use_capture(self, capture: StepCapture) -> None:
        """Capture whole steps as CUDA graphs from now on, and replay them."""
        self.capture = capture
        self.forward.is_captured = True
        self.updater.rounds_rates = True

    def forget_last_step(self) -> None:
        """Forget the last step, whose result may not have been read yet, before a checkpoint is restored."""
        self._drop_captures()
        self.updater.last_result = None

    def fall_back_to_fp32(self) -> None:
        """Switch to fp32 without scaling from now on."""
        self._drop_captures()
        self.forward.dtype, self.updater.scaler.fell_back = None, True

    def _drop_captures(self) -> None:
        if self.capture:
            self.capture.drop()

    def __call__(self, batch: Batch, share: BatchShare = WHOLE_BATCH) -> StepResult:
        """Train one step, completely or not at all, on this rank's shard of a batch.

        Measurements and searches call it; the training loop calls `replay`, `compute_gradients` and `update` itself.

        Raises:
            SpecError: if a buffer of the network has another shape than before training.
            OutOfMemory: if a single sample is too large, or the batch is too large and its loss cannot be split.
            RestartSmaller: if memory ran out in one of several processes.
            HalfUpdated: if memory ran out in the update; micro-batches have half the size from now on.
        """
        return self.replay(batch, share) or self.update(self.compute_gradients(batch, share), len(batch))

    def replay(self, batch: Batch, share: BatchShare) -> StepResult | None:
        """Replay a captured step with its update; returns None if the step must be computed."""
        if self.capture is None:
            return None
        result = self.capture.replay(self.forward, self.updater, batch, share.seed)
        if result is not None:
            result.sample_hashes = [batch_sharding.hash_samples(batch.ids)]
            self.updater.last_result = result
        return result

    def compute_gradients(self, batch: Batch, share: BatchShare = WHOLE_BATCH) -> BatchLoss:
        """Compute the gradients of the whole batch, summed over all ranks; raises the same errors as `__call__`.

        The ranks exchange their errors with the loss. After an error all of them drop the gradients; they either raise
        it or try the batch again, with smaller micro-batches or other kernels.
        """
        # A forward pass changes the statistics of BatchNorm even if the step fails.
        self.updater.buffers.remember()
        sample_hash = batch_sharding.hash_samples(batch.ids)
        denominators = self.forward.loss.start_denominators(batch, share, self.lockstep.ranks, self.forward.device)
        is_wrapped_again = self.exchange.wrap_if_changed(self.forward.network)
        if is_wrapped_again and self.forward.deterministic_only:
            # DDP could not compute this batch again after its gradients have been sent.
            self._try_kernels(batch, share, denominators)
        while True:
            local_loss = self._try_batch(batch, share, denominators)
            # All ranks continue with the BatchNorm statistics of rank 0, which travel with the loss.
            receive_buffers = self.lockstep.ranks.start_broadcast(self.updater.buffers.list_current())
            loss, rows = self.exchange.sum_loss_and_gather(local_loss, self.lockstep.make_status(sample_hash))
            receive_buffers()
            statuses = [RankStatus(*row) for row in rows]
            error = self.lockstep.agree_on_error(statuses)
            if error is None:
                return BatchLoss(loss, [status.sample_hash for status in statuses])
            self.updater.discard()
            self._prepare_retry(error, len(batch))

    def update(self, loss: BatchLoss, samples: int) -> StepResult:
        """Update the weights with the gradients of a batch; this rank has computed `samples` of its samples.

        Raises:
            RestartSmaller: if memory ran out in one of several processes.
            HalfUpdated: if memory ran out; micro-batches have half the size from now on.
        """
        try:
            result = self.updater.update(loss.total)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            self._end_if_not_alone(samples)
            self.updater.discard()
            self._halve_micro_batch(samples, error)
            raise HalfUpdated("out of memory in the middle of an update") from None
        result.sample_hashes = loss.sample_hashes
        return result

    def _try_batch(self, batch: Batch, share: BatchShare, denominators: Denominators) -> torch.Tensor:
        """Compute the gradients of this rank's shard of a batch; the rank holds an error that a retry may avoid.

        Returns:
            The sum of the micro-batch losses, a scalar; meaningless after an error.
        """
        is_alone = self.lockstep.ranks.world_size == 1
        # A signal may interrupt a process that trains alone. If one of several ranks left its backward pass, the others
        # would wait for its gradients forever.
        guard = self.interruptible() if is_alone else self.lockstep.ranks.raising_peer_errors(runs_network=True)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.forward.device)
        compute_loss = self.exchange.route_through_ddp(self.forward.compute_loss)
        # Gradients of other code, such as the step of a second network, do not belong to this batch.
        self.updater.optimizer.zero_grad(set_to_none=True)
        try:
            with guard, self.forward.trying(share.seed):
                micro_batches = list(self.forward.split(batch))
                for micro_batch in micro_batches:
                    with self.exchange.all_reduce_if(micro_batch is micro_batches[-1]):
                        loss = compute_loss(micro_batch, denominators)
                        self.updater.scaler.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
                        loss_sum = loss_sum + loss.detach()
                        del loss  # otherwise its graph would stay in memory until the next one is complete
        except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
            self.lockstep.hold(self._convert_error(error, len(batch)))
            return loss_sum
        if not is_alone:
            # Hold a signal that has arrived in the meantime, so that this exchange tells the other ranks.
            with self.lockstep.holding_errors(), self.interruptible():
                pass
        return loss_sum

    def _try_kernels(self, batch: Batch, share: BatchShare, denominators: Denominators) -> None:
        """Try a micro-batch without DDP, to find operations without a deterministic kernel."""
        micro_batch = next(iter(self.forward.split(batch)))
        try:
            with self.forward.trying(share.seed):
                self.forward.compute_loss(micro_batch, denominators).backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            self._convert_error(error, len(batch))  # allows other kernels, or raises
        self.updater.discard()

    def _convert_error(self, error: BaseException, samples: int) -> BaseException:
        """Convert an error of this rank's `samples` samples to the error that the rank holds.

        Raises:
            BaseException: the error itself, if a retry would fail too.
            RestartSmaller: if memory ran out in one of several processes.
        """
        if isinstance(error, KeyboardInterrupt):
            return error
        if not torch_errors.is_out_of_memory(error):
            return self._allow_other_kernels(error)
        self._end_if_not_alone(samples)
        # The traceback would keep the tensors of the failed try alive.
        return error.with_traceback(None)

    def _allow_other_kernels(self, error: BaseException) -> ComputeAgain:
        """Allow operations without a deterministic kernel if one caused `error`, else raise `error`."""
        operation = torch_settings.find_nondeterministic_operation(error)
        if operation is None or not self.forward.deterministic_only:
            raise error
        self.forward.deterministic_only = False
        self.report(
            "numbers",
            f"{operation} has no deterministic kernel: results are not bit-identical; replace it in the network, or "
            "set train.deterministic: false",
        )
        return ComputeAgain(f"{operation} has no deterministic kernel")

    def _prepare_retry(self, error: BaseException, samples: int) -> None:
        """Prepare another try of a batch after an error of all ranks; raise the error if a retry would not help."""
        if torch_errors.is_out_of_memory(error):
            self._halve_micro_batch(samples, error)
        elif not isinstance(error, ComputeAgain):  # after ComputeAgain other kernels are allowed already
            raise error

    def _end_if_not_alone(self, samples: int) -> None:
        """End this rank after memory ran out, if it is one of several: they start again with smaller micro-batches."""
        if self.lockstep.ranks.world_size > 1:
            raise out_of_memory_error(self.lockstep.ranks, self.forward.micro_batch or samples) from None

    def _halve_micro_batch(self, batch_samples: int, error: BaseException) -> None:
        """Halve the size of the micro-batches after memory ran out in a process that trains alone.

        Raises:
            OutOfMemory: if they cannot be smaller.
        """
        samples = min(self.forward.micro_batch or batch_samples, batch_samples)
        obstacle = self.forward.loss.split_obstacle
        if obstacle:
            description = f"{samples} samples at once" if samples > 1 else "the whole batch"
            raise cannot_split_error(f"out of memory with {description}", obstacle) from None
        if samples <= self.forward.min_samples:
            raise torch_errors.out_of_memory_error(error, samples) from None
        self.use_micro_batch(max(self.forward.min_samples, samples // 2))
        self.report(
            "memory",
            f"out of memory with micro-batch {samples}; continuing with {self.forward.micro_batch}, same batch size",
        )
