"""Shows the progress of a run: a live view on a terminal, single lines everywhere else.

The live view reads the run folder, as `drivetrain watch` does, and is drawn by its own thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import torch

from drivetrain.errors import DrivetrainError
from drivetrain.job.formatting import format_metric, format_metrics
from drivetrain.system.console import is_live_terminal, say
from drivetrain.system.run_files import PROGRESS_FILE, RunFiles
from drivetrain.tracking.live.dashboard import format_time_left
from drivetrain.tracking.live.live_view import LINE_SECONDS, LiveView
from drivetrain.tracking.live.time_left import TimeLeft
from drivetrain.training.forecast import Forecast, describe_forecast, make_forecast
from drivetrain.training.run import Run
from drivetrain.training.time_target import EVALUATION_SHARE

MAX_COLUMNS_SHOWN = 4
"""Largest number of target columns whose metrics are all shown in the line of an epoch."""
MAX_EPOCHS_LOGGED = 20
"""Largest number of epochs that all have a line in a log, even if they are short."""


class Progress:
    """Shows the progress of a run of `total` steps."""

    def __init__(self, total: int) -> None:
        self.total_steps = total
        self.forecast: Forecast = {}
        self.correction = ""
        """Reason why the forecast is made again; empty if it is not."""
        self.line_printed_at = -float("inf")
        self.epoch_logged_at = -float("inf")
        """Time of the last line of an epoch, in seconds of `time.monotonic`."""
        self.estimate: TimeLeft | None = None
        self.is_decoding = False
        """Whether this epoch decodes images that later epochs read from a cache."""
        self.save_seconds = 0.0
        """Time of the first checkpoint."""
        self.live_view: LiveView | None = None

    def report_step(self, run: Run, step: int, loss: float) -> None:
        """Report step number `step` and its loss."""
        now = time.monotonic()
        if self.estimate is None:
            self.estimate = TimeLeft(self.total_steps, run.batches.per_epoch, self._write_length(run))
            self.save_seconds = run.clock.phases.get("checkpoint", 0.0)
            self.live_view = LiveView(run.folder) if is_live_terminal() else None
            self.is_decoding = bool(run.plan.value("decode_cache")) and not run.counters.epoch
        if self.is_decoding and run.counters.epoch:
            # The cost of decoding says nothing about epochs that read decoded images.
            self.is_decoding = False
            self.restart_estimate(run, "the images are decoded")
        self.estimate.add(now, step)
        if run.time_target:
            self.total_steps = self.estimate.total = run.total_steps
        self._report_forecast(run, self.estimate, now)
        if self.live_view or now - self.line_printed_at < LINE_SECONDS:
            return
        self.line_printed_at = now
        if run.time_target:
            self._write_length(run)
        seconds = self.estimate.step_seconds()
        epoch_text = f"epoch {run.counters.epoch + 1}/{run.total_epochs}"
        speed = f"  {run.batches.batch_size / seconds:.0f} samples/s" if seconds else ""
        progress = f"{epoch_text}  step {step}/{self.total_steps}  loss {format_metric(loss)}{speed}"
        say(f"{progress}  {self._format_time_left(run, now)}")

    def restart_estimate(self, run: Run, reason: str) -> None:
        """Forget the times of earlier steps, which say nothing about later ones, and forecast again."""
        self.correction = f"corrected: {reason}" if self.forecast else ""
        self.estimate = TimeLeft(self.total_steps, run.batches.per_epoch, self._write_length(run))

    def _report_forecast(self, run: Run, estimate: TimeLeft, now: float) -> None:
        """Print the forecast once there are enough steps."""
        if self.forecast and not self.correction:
            return
        forecast = make_forecast(run, estimate, now, self.save_seconds)
        if not forecast:
            return
        notes = [self.correction or f"by {forecast['steps']:,} steps"]
        if self.is_decoding:
            notes.append("later epochs need not decode the images again")
        if run.job.train.early_stopping:
            notes.append("early stopping may end it sooner")
        if run.job.train.max_time:
            notes.append("train.max_time may stop it sooner")
        self.forecast, self.correction = forecast, ""
        seconds_left = forecast["seconds"] - run.counters.seconds - run.clock.seconds
        say(describe_forecast(forecast, datetime.now(UTC) + timedelta(seconds=seconds_left), "; ".join(notes)))

    def _write_length(self, run: Run) -> float:
        """Write the data for `watch` to the run folder; returns the assumed cost of an evaluation in steps."""
        evaluation = len(run.dataset.validation) / run.batches.batch_size * EVALUATION_SHARE
        ahead = {
            "steps": self.total_steps,
            "steps_per_epoch": run.batches.per_epoch,
            "evaluation_steps": evaluation,
            "best": run.best_metric.best.metric,
        }
        try:
            RunFiles(run.folder).write_json(PROGRESS_FILE, ahead)
        except DrivetrainError as error:
            say(f"storage: {error.given}; `drivetrain watch` cannot show the time left")
        return evaluation

    def _format_time_left(self, run: Run, now: float) -> str:
        assert self.estimate is not None
        seconds_left, seconds_allowed = self.estimate.estimate(now), run.time_left()
        at_most = run.job.train.early_stopping is not None or (
            seconds_left is not None and seconds_allowed < seconds_left
        )
        return format_time_left(None if seconds_left is None else min(seconds_left, seconds_allowed), at_most)

    def report_evaluation(self, run: Run, best: str) -> None:
        """Report an evaluation; `best` says that it is the best so far, and the reason if it is not obvious.

        A log has about MAX_EPOCHS_LOGGED of many short epochs; metrics.jsonl has all of them.
        """
        now, epoch, count = time.monotonic(), run.counters.epoch + 1, run.total_epochs
        is_logged = epoch in (1, count) or epoch % -(-count // MAX_EPOCHS_LOGGED) == 0
        if self.live_view is None and (is_logged or now - self.epoch_logged_at >= LINE_SECONDS):
            self.epoch_logged_at = now
            columns = [
                name.removesuffix("rmse") for name in run.last_metrics if name.count("/") > 1 and name.endswith("/rmse")
            ]
            hidden = tuple(columns) if len(columns) > MAX_COLUMNS_SHOWN else ()
            shown = {name: value for name, value in run.last_metrics.items() if not name.startswith(hidden)}
            metrics_text = format_metrics(shown, run.best_metric.best.metric, "  ")
            say(f"epoch {epoch}/{count}  {metrics_text}{f'  {best}' if best else ''}")

    def close(self) -> None:
        """Close the live view and leave its last state on the screen."""
        if self.live_view:
            self.live_view.close()
            self.live_view = None


def measure_since_last_call(run: Run) -> Callable[[], dict[str, Any]]:
    """Return a function that measures samples per second and the share of waiting for input since its last call."""
    before = [time.monotonic(), run.counters.samples, 0.0]

    def since() -> dict[str, Any]:
        now, samples, waited = time.monotonic(), run.counters.samples, run.clock.phases.get("input", 0.0)
        span = max(1e-9, now - before[0])
        values: dict[str, Any] = {
            "step": run.counters.step,
            "samples_per_second": round((samples - before[1]) / span, 2),
            "input_wait": round(min(1.0, (waited - before[2]) / span), 4),
        }
        if run.device.type == "cuda":
            # Bytes of this process's tensors, and bytes that its allocator has reserved.
            values["gpu_allocated"] = torch.cuda.memory_allocated(run.device)
            values["gpu_reserved"] = torch.cuda.memory_reserved(run.device)
        before[:] = [now, samples, waited]
        return values

    return since
