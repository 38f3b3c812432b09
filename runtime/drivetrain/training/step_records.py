"""Records the steps of a run: metrics, events about numbers and CPUs, progress.

The result of a step that a GPU is still computing is recorded after the next steps have been queued, so the GPU never
waits for the host, even if the host pauses for a few steps. A rollback after a bad step is then delayed by as many
steps, with the same outcome: it restores a checkpoint, and a skipped step has changed nothing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from drivetrain.distributed import batch_sharding
from drivetrain.errors import Stopped
from drivetrain.system.signals import Interrupted
from drivetrain.training.cpu_sharing import CpuSharing, watch_neighbors
from drivetrain.training.nonfinite import RollBack
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from drivetrain.training.step_result import StepResult

MAX_STEPS_LATE = 3
"""Number of steps that may be queued after a step whose result is not read yet; a GPU holds all their batches."""
MAX_JUMPS_SHOWN = 3
"""Number of jumps of the loss that are shown in the log: a few wrong labels cause a jump in each epoch."""


@dataclass(frozen=True)
class TrainedStep:
    """A step whose update is done, or queued on the device."""

    number: int
    """Counted from 1."""
    position: tuple[int, int]
    """(epoch, batch), both counted from 0."""
    learning_rate: float
    result: StepResult
    batch_digest: str = ""
    """Digest of its sample ids."""


class StepRecords:
    """Records the steps of `run`, in order, shows them in `progress`, and saves when `saver` says so."""

    def __init__(self, run: Run, saver: Saver, progress: Progress, profiler: Profiler | None = None) -> None:
        self.run, self.saver, self.progress, self.profiler = run, saver, progress, profiler
        self.pending = deque[TrainedStep]()
        """Last steps, whose results have not been read yet."""
        self.jump_count = 0
        """Jumps of the loss in this attempt."""
        self.cpu_sharing = watch_neighbors(run)

    def add(self, result: StepResult, learning_rate: float) -> None:
        """Record the step MAX_STEPS_LATE before the current step, or all steps if the host has the current result.

        Raises:
            NotFinite: if the run must roll back.
            Fp16Collapse: if the run must continue in fp32.
            NumericsError: if fp16 has collapsed and the job has no fallback.
        """
        run, counters = self.run, self.run.counters
        is_replicated = run.batch_sharding.is_replicated(run.batches.size(counters.batch))
        digest = batch_sharding.digest_batch(result.sample_hashes, is_replicated=is_replicated)
        position = counters.epoch, counters.batch
        self.pending.append(TrainedStep(counters.step + 1, position, learning_rate, result, digest))
        self._record_all_but(MAX_STEPS_LATE if result.on_device else 0)

    def flush(self) -> None:
        """Record the steps that are not recorded yet; raises the same errors as `add`."""
        self._record_all_but(0)

    def _record_all_but(self, count: int) -> None:
        while len(self.pending) > count:
            self._record(self.pending.popleft())

    def end_step(self, result: StepResult | None) -> None:
        """Profile, save and report a step, unless it will be undone or a signal stops the run.

        `result` is the result of the step, or None if its batch was skipped.
        """
        run = self.run
        if run.lockstep.held_error or run.signals.peek():
            return
        with run.lockstep.holding_errors():
            if self.cpu_sharing and not self.cpu_sharing.has_looked:
                self._look_at_neighbors(self.cpu_sharing)
            if self.profiler:
                self.profiler.step()
            if self.saver.is_due():
                self.flush()
                self.saver.save_periodically()
            if result is not None and run.user_parts.callbacks.on_step is not None:
                self.flush()
                rate, is_skipped = float(run.optimizer.param_groups[0]["lr"]), not result.finite
                values = {"loss": result.loss, "lr": rate, "grad_norm": result.grad_norm, "skipped": is_skipped}
                info = run.collect_info(run.counters.epoch + 1, **values)
                run.stop_reason = run.user_parts.callbacks.call("on_step", info)

    def check_last_step(self) -> None:
        """Record the last step of an epoch and check the weights before their evaluation, unless there is an error."""
        if self.cpu_sharing:
            self._look_at_neighbors(self.cpu_sharing)
        if self.run.lockstep.held_error is not None:
            return
        interruption = self.run.signals.peek()
        if interruption:
            raise interruption
        self.flush()
        self.saver.check_finite()

    def _look_at_neighbors(self, cpu_sharing: CpuSharing) -> None:
        if cpu_sharing.look_at_neighbors():
            self.progress.restart_estimate(
                self.run, f"its threads {'share a CPU' if cpu_sharing.is_sharing else 'have a CPU each'}"
            )

    @contextlib.contextmanager
    def complete_at_stop(self) -> Iterator[None]:
        """Record the last steps if the block of steps ends with an error that does not undo them.

        Raises:
            RollBack: instead of a stop, if a step was not finite: the run rolls back first, and is stopped afterwards.
        """
        try:
            yield
        except (RollBack, Stopped, Interrupted) as error:
            # A stop saves a checkpoint, so the steps before it need their rows. After an error of another process,
            # rank 0 may already have recorded the row when it saved, and all processes must skip the same batches.
            if not isinstance(error, RollBack) or error is not self.run.lockstep.last_held_error:
                self.flush()
            raise

    def close(self) -> None:
        """Restore the CPUs of the process."""
        if self.cpu_sharing:
            self.cpu_sharing.close()

    def drop(self) -> None:
        """Forget the last steps, which a rollback undoes."""
        self.pending.clear()

    def _record(self, step: TrainedStep) -> None:
        run, (loss, norm) = self.run, step.result.read()
        scaler = run.step.updater.scaler
        assert run.metrics is not None
        rate = step.learning_rate
        group_rates = {f"{group.pattern}/lr": rate * group.factor for group in run.lr_groups if group.pattern}
        values = {"train/loss": loss, "lr": rate, **group_rates, "grad_norm": norm}
        if scaler.active:
            values["scale"] = scaler.scale
        skipped = {} if step.result.finite else {"skipped": 1.0}
        run.metrics.write(step.number, step.position[0], values | skipped, batch=step.batch_digest)
        if run.ema:
            run.ema.count(step.result.finite)
        self._check_numbers(step)
        self.progress.report_step(run, step.number, loss)

    def _check_numbers(self, step: TrainedStep) -> None:
        """Record a jump of the loss, or numbers that are not finite; raises the same errors as `add`."""
        run, result = self.run, step.result
        if result.finite:
            message = run.numerics.record_good(result.loss, step.position, lambda: run.batches.order(*step.position)[0])
            if message:
                self.jump_count += 1
                if self.jump_count < MAX_JUMPS_SHOWN:
                    run.events.add("loss", message, step.number)
                elif self.jump_count == MAX_JUMPS_SHOWN:
                    run.events.add("loss", f"{message}; further jumps are only in events.jsonl", step.number)
                else:
                    run.events.store("loss", message, step.number)
            return
        text = f"step {step.number} skipped: loss {result.loss:.4g}, gradient norm {result.grad_norm:.4g}"
        run.events.add("numbers", text, step.number)
        ids, scaler = run.batches.order(*step.position)[0], run.step.updater.scaler
        run.numerics.record_skipped(step.position, ids, scaler.scale if scaler.active else None)
