"""Trains one optimizer step on one batch: forward pass, backward pass, exchange of gradients, update."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

from drivetrain.data.custom.user_loss import cannot_split_error
from drivetrain.data.dataset import Batch
from drivetrain.distributed import batch_parts
from drivetrain.distributed.batch_parts import WHOLE, BatchShare
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.job.train import Fp16
from drivetrain.models.compiled_forward import CompiledForward
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.loss_function import Denominators
from drivetrain.system import torch_errors, torch_settings
from drivetrain.system.console import say
from drivetrain.training.captured_step import StepCapture
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.peers import ComputeAgain, HalfUpdated, Peers, StepNote, out_of_memory_error
from drivetrain.training.step_result import BatchLoss, StepResult
from drivetrain.training.updater import Updater


class Step:
    """Trains steps, each completely or not at all."""

    def __init__(self, forward: ForwardPass, updater: Updater, peers: Peers | None = None) -> None:
        self.forward, self.updater, self.peers = forward, updater, peers or Peers()
        self.exchange = GradientExchange(self.peers.ranks)
        self.capture: StepCapture | None = None
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

    def __call__(self, batch: Batch, share: BatchShare = WHOLE) -> StepResult:
        """Train one step, completely or not at all, on this process's share of a batch.

        Measurements and searches call it; the training loop calls `replay`, `compute_gradients` and `update` itself.
        If memory runs out in a process that trains alone, the batch is tried again in micro-batches of half the size,
        with the same buffers and random numbers.

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
            result.sample_hashes = [batch_parts.hash_samples(batch.ids)]
            self.updater.last_result = result
        return result

    def compute_gradients(self, batch: Batch, share: BatchShare = WHOLE) -> BatchLoss:
        """Compute the gradients of the whole batch, over all processes; raises the same errors as `__call__`.

        A problem of one process is sent with its loss: all processes drop the step and raise the most serious problem.
        The batch is computed again in smaller micro-batches after memory ran out in a process that trains alone, and
        with other kernels after an operation had no deterministic one.
        """
        forward, updater, exchange, peers = self.forward, self.updater, self.exchange, self.peers
        # A forward pass changes BatchNorm's statistics even if the step fails.
        updater.buffers.remember()
        denominators = forward.loss.start_denominators(batch, share, peers.ranks, forward.device)
        is_wrapped_again = exchange.wrap_if_changed(forward.network)
        if is_wrapped_again and forward.deterministic_only:
            self._try_kernels(batch, share, denominators)
        compute_loss = exchange.route_through_ddp(forward.compute_loss)
        sample_hash = batch_parts.hash_samples(batch.ids)
        while True:
            # Gradients of other code, such as the step of a second network, do not belong to this batch.
            updater.optimizer.zero_grad(set_to_none=True)
            loss = self._try_batch(batch, share, denominators, compute_loss)
            total, rows = exchange.sum_loss_and_gather(loss, peers.write_note(sample_hash))
            notes = [StepNote(*row) for row in rows]
            problem = peers.finish_exchange(notes)
            if problem is None:
                # All processes continue with rank 0's buffers.
                peers.ranks.broadcast(updater.buffers.list_current())
                return BatchLoss(total, [note.sample_hash for note in notes])
            updater.discard()
            if torch_errors.is_out_of_memory(problem):
                self._halve_micro_batch(len(batch), problem)
            elif not isinstance(problem, ComputeAgain):
                raise problem
            # After ComputeAgain the same batch is computed with the kernels that are allowed now.

    def update(self, loss: BatchLoss, samples: int) -> StepResult:
        """Update the weights with the gradients of a batch; this process has computed `samples` of its samples.

        Raises:
            RestartSmaller: if memory ran out in one of several processes.
            HalfUpdated: if memory ran out; micro-batches have half the size from now on.
        """
        try:
            result = self.updater.update(loss.total)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            if self.peers.ranks.count > 1:
                raise out_of_memory_error(self.peers.ranks, self.forward.micro_batch or samples) from None
            self.updater.discard()
            self._halve_micro_batch(samples, error)
            raise HalfUpdated("out of memory in the middle of an update") from None
        result.sample_hashes = loss.sample_hashes
        return result

    def _try_batch(
        self, batch: Batch, share: BatchShare, denominators: Denominators, compute_loss: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Compute the gradients of this process's share of a batch; an error becomes a problem of all processes.

        Returns:
            The sum of the losses, a scalar; meaningless after a problem.
        """
        is_alone = self.peers.ranks.count == 1
        # A signal may interrupt the passes of a process that trains alone, at once if it has already arrived. If one of
        # several processes left its backward pass, the others would wait for its gradients forever.
        guard = self.interruptible() if is_alone else self.peers.ranks.raising_peer_errors()
        total = torch.zeros((), dtype=torch.float64, device=self.forward.device)
        try:
            with guard, self.forward.trying(share.seed):
                micro_batches = list(self.forward.split(batch))
                for number, micro_batch in enumerate(micro_batches, 1):
                    with self.exchange.sending(is_last=number == len(micro_batches)):
                        loss = compute_loss(micro_batch, denominators)
                        self.updater.scaler.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
                        total = total + loss.detach()
                        del loss  # otherwise its graph would stay in memory until the next one is complete
        except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
            self.peers.keep(self._convert_to_problem(error, len(batch)))
            return total
        if not is_alone:
            # A signal that has arrived in the meantime becomes a problem here, before the notes are exchanged.
            with self.peers.catching(), self.interruptible():
                pass
        return total

    def _convert_to_problem(self, error: BaseException, samples: int) -> BaseException:
        """Convert an error of a batch of `samples` samples to the problem that this process reports to the others.

        Raises:
            BaseException: the error itself, if another try would fail too.
            RestartSmaller: if memory ran out in one of several processes.
        """
        if isinstance(error, KeyboardInterrupt):
            return error
        if not torch_errors.is_out_of_memory(error):
            return self._allow_other_kernels(error)
        if self.peers.ranks.count > 1:
            raise out_of_memory_error(self.peers.ranks, self.forward.micro_batch or samples) from None
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

    def _try_kernels(self, batch: Batch, share: BatchShare, denominators: Denominators) -> None:
        """Try a micro-batch, to find operations without a deterministic kernel before gradients are exchanged."""
        micro_batch = next(iter(self.forward.split(batch)))
        try:
            with self.forward.trying(share.seed):
                self.forward.compute_loss(micro_batch, denominators).backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            self._convert_to_problem(error, len(batch))  # allows other kernels, or raises
        self.updater.discard()

    def _halve_micro_batch(self, batch_samples: int, error: BaseException) -> None:
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
