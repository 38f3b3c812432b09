"""Records the steps of a run: metrics, events about numbers, progress.

The result of a step that a GPU is still computing is recorded after the next step has been queued, so the GPU never
waits for the host. What follows from a bad step, such as a rollback, comes one step later then, with the same outcome:
a rollback restores a checkpoint, and a skipped step has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain.training.step_result import StepResult

if TYPE_CHECKING:
    from drivetrain.training.progress import Progress
    from drivetrain.training.run import Run


@dataclass(frozen=True)
class TrainedStep:
    """A step that has been queued, or is done."""

    number: int
    """From 1."""
    place: tuple[int, int]
    """(epoch, batch)."""
    rate: float
    """The learning rate."""
    result: StepResult
    batch: str = ""
    """The digest of its samples."""


class StepRecords:
    """Records the steps of `run`, in order, and shows them in `progress`."""

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.pending: TrainedStep | None = None
        """The last step, if its result has not been read yet."""

    def add(self, step: TrainedStep) -> None:
        """Record the step before this one, and this one too if its result is known already.

        Raises:
            NotFinite: if the run must roll back.
            Fp16Collapse: if it must continue in fp32.
            NumericsError: if fp16 has collapsed and the job says so.
        """
        before, self.pending = self.pending, step
        if before:
            self._record(before)
        if not step.result.on_device:
            self.flush()

    def flush(self) -> None:
        """Record the last step, if that has not been done; raises as `add`."""
        last, self.pending = self.pending, None
        if last:
            self._record(last)

    def drop(self) -> None:
        """Forget the last step: the run goes back to before it."""
        self.pending = None

    def _record(self, step: TrainedStep) -> None:
        run, (loss, norm) = self.run, step.result.read()
        scaler = run.step.scaler
        assert run.metrics is not None
        values = {"train/loss": loss, "lr": step.rate, **run.group_rates(step.rate), "grad_norm": norm}
        if scaler.active:
            values["scale"] = scaler.scale
        skipped = {} if step.result.finite else {"skipped": 1.0}
        run.metrics.write(step.number, step.place[0], values | skipped, batch=step.batch)
        if run.ema:
            run.ema.count(step.result.finite)
        self._judge(step)
        self.progress.step(run, step.number, loss)

    def _judge(self, step: TrainedStep) -> None:
        run, result = self.run, step.result
        if result.finite:
            word = run.numerics.good(result.loss, step.place, lambda: run.batches.order(*step.place)[0])
            if word:
                run.events.add("loss", word, step.number)
            return
        text = f"step {step.number} skipped: loss {result.loss:.4g}, gradient norm {result.grad_norm:.4g}"
        run.events.add("numbers", text, step.number)
        ids, scaler = run.batches.order(*step.place)[0], run.step.scaler
        run.numerics.skipped(step.place, ids, scaler.scale if scaler.active else None)
