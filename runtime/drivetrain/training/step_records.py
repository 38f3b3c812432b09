"""Records the steps of a run: metrics, events about numbers, progress.

The result of a step that a GPU is still computing is recorded after the next step has been queued, so the GPU never
waits for the host. A rollback after a bad step then comes one step later, with the same outcome: it restores a
checkpoint, and a skipped step has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain.training.step_result import StepResult

if TYPE_CHECKING:
    from drivetrain.training.progress import Progress
    from drivetrain.training.run import Run
MAX_JUMPS_SHOWN = 3
"""Jumps of the loss that have a line in the log: a few wrong labels make one in each epoch."""


@dataclass(frozen=True)
class TrainedStep:
    """A step whose update has been made, or queued on the device."""

    number: int
    """Counted from 1."""
    position: tuple[int, int]
    """(epoch, batch), both counted from 0."""
    learning_rate: float
    result: StepResult
    batch_digest: str = ""
    """A digest of its sample ids."""


class StepRecords:
    """Records the steps of `run`, in order, and shows them in `progress`."""

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.pending: TrainedStep | None = None
        """The last step, if its result has not been read yet."""
        self.jump_count = 0
        """Jumps of the loss in this attempt."""

    def add(self, step: TrainedStep) -> None:
        """Record the step before this one, and this one too if the host has its result already.

        Raises:
            NotFinite: if the run must roll back.
            Fp16Collapse: if it must continue in fp32.
            NumericsError: if fp16 has collapsed and the job says so.
        """
        previous, self.pending = self.pending, step
        if previous:
            self._record(previous)
        if not step.result.on_device:
            self.flush()

    def flush(self) -> None:
        """Record the last step, if that has not been done; raises as `add`."""
        last, self.pending = self.pending, None
        if last:
            self._record(last)

    def drop(self) -> None:
        """Forget the last step, which a rollback undoes."""
        self.pending = None

    def _record(self, step: TrainedStep) -> None:
        run, (loss, norm) = self.run, step.result.read()
        scaler = run.step.scaler
        assert run.metrics is not None
        rate = step.learning_rate
        values = {"train/loss": loss, "lr": rate, **run.group_rates(rate), "grad_norm": norm}
        if scaler.active:
            values["scale"] = scaler.scale
        skipped = {} if step.result.finite else {"skipped": 1.0}
        run.metrics.write(step.number, step.position[0], values | skipped, batch=step.batch_digest)
        if run.ema:
            run.ema.count(step.result.finite)
        self._check_numbers(step)
        self.progress.report_step(run, step.number, loss)

    def _check_numbers(self, step: TrainedStep) -> None:
        """Record a jump of the loss, or numbers that are not finite; raises as `add`."""
        run, result = self.run, step.result
        if result.finite:
            message = run.numerics.record_good(result.loss, step.position, lambda: run.batches.order(*step.position)[0])
            if message:
                self.jump_count += 1
                if self.jump_count < MAX_JUMPS_SHOWN:
                    run.events.add("loss", message, step.number)
                elif self.jump_count == MAX_JUMPS_SHOWN:
                    run.events.add("loss", f"{message}; further jumps are in events.jsonl alone", step.number)
                else:
                    run.events.store("loss", message, step.number)
            return
        text = f"step {step.number} skipped: loss {result.loss:.4g}, gradient norm {result.grad_norm:.4g}"
        run.events.add("numbers", text, step.number)
        ids, scaler = run.batches.order(*step.position)[0], run.step.scaler
        run.numerics.record_skipped(step.position, ids, scaler.scale if scaler.active else None)
