"""Searches micro-batches that fit, with real training and evaluation steps at the largest shapes.

It uses a separate run with a copy of the network that is discarded. The peak of each size is predicted from smaller
sizes, so on a CPU no step is started that would reach the limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from drivetrain.data.dataset import Batch, Split, longest_samples
from drivetrain.data.loader import batches
from drivetrain.errors import OutOfMemory
from drivetrain.job.values import parse_interval
from drivetrain.system import units
from drivetrain.system.fault_points import fault_point
from drivetrain.training import batch_inputs
from drivetrain.training.evaluation.validation import default_batch_size
from drivetrain.training.peers import HalfUpdated
from drivetrain.training.run import Run
from drivetrain.training.torch_setup import synchronize
from drivetrain.tuning.memory import meter

SPEED_ROUNDS = 3


@dataclass(frozen=True)
class SizeTrial:
    """A tried size; memory in bytes."""

    size: int
    predicted: int | None
    """Predicted peak; None for the first size, which has no basis for a prediction."""
    peak: int | None
    """Measured peak; None if the size did not fit."""
    speed: float
    """Samples per second of a step on two micro-batches."""


@dataclass
class SizeSearchResult:
    """Result of a search; memory in bytes."""

    base: int
    """Memory in use before the first step."""
    ceiling: int
    """Limit of the memory."""
    recompute: bool
    """Whether blocks were recomputed."""
    trials: list[SizeTrial] = field(default_factory=list)
    largest: int = 0
    """Largest size that fits; 0 if the smallest does not."""
    fits_whole_batch: bool = False
    """Whether the whole batch and an evaluation batch of the usual size fit."""
    held: int = 0
    """Memory in use with any size, including optimizer state and gradients."""
    next_peak: int = 0
    """Predicted peak of the next size: the whole batch, or twice the largest."""
    recompute_reason: str = ""
    """Reason for recomputing blocks, if the search decided it."""

    def peak(self, size: int) -> int:
        """Return the peak of a size that fits."""
        return next((t.peak for t in self.trials if t.size == size and t.peak is not None), self.base)

    def describe_failure(self) -> str:
        """Describe that no micro-batch size fits."""
        smallest = self.trials[0].size if self.trials else 1
        return f"a micro-batch of {smallest} does not fit into {units.format_bytes(self.ceiling)}"

    def list_fitting(self) -> list[int]:
        """List the sizes that fit, largest first."""
        return sorted((t.size for t in self.trials if t.peak is not None and t.size <= self.largest), reverse=True)


class SizeSearch:
    """Tries increasing sizes with one run.

    Args:
        run: assembled run that is used for nothing else.
        min_size: smallest size that the network can train with.
    """

    def __init__(self, run: Run, min_size: int = 1) -> None:
        self.run, self.min_size, self.meter = run, min_size, meter.meter_for(run.device)
        run.step.report = lambda kind, text: None
        run.batches.report = lambda text: None
        self.batch_size = min(run.job.train.batch, len(run.dataset.train))
        self.use_size(self.batch_size)
        self.weight_bytes = sum(p.nbytes for p in run.step.updater.parameters)
        self.is_warm = False
        self.batch_peak = self.bytes_before_step = 0
        """Bytes for any size: the peak while a batch is made, and the memory in use before a step on it."""

    def use_size(self, batch_size: int) -> None:
        """Use whole batches of `batch_size` samples from now on."""
        settings, data = self.run.batches, self.run.dataset
        self.batch_size = batch_size
        workers = settings.workers_for(data.train, batch_size)
        self.training_batches = _repeat_longest(data.train, batch_size, workers, settings.pin)
        self.validation_batches = _repeat_longest(data.validation, batch_size, 0, False)

    def search_sizes(self) -> SizeSearchResult:
        """Try sizes until there is nothing left to try."""
        self.meter.reset_peak()
        ladder = SizeLadder(self.batch_size, self.meter.read_used(), self.compute_limit(), self.min_size)
        sizes = SizeSearchResult(ladder.base, ladder.ceiling, self.run.plan.value("gradient_checkpointing") is True)
        evaluation_peak = ladder.base
        while (size := ladder.choose_next()) is not None:
            predicted = ladder.predict_peak(size) if ladder.peaks else None
            peak, seconds = self.measure_training_peak(size, ladder.ceiling)
            if peak is not None:
                evaluation_peak = self.measure_evaluation_peak(size)
                peak = max(peak, evaluation_peak)
            ladder.record(size, peak)
            # Only a real step shows the memory in use with any size.
            if predicted is None:
                ladder.base = self.fixed_bytes()
            fits = max(ladder.peaks[size], self.batch_peak) if size in ladder.peaks else None
            sizes.trials.append(SizeTrial(size, predicted, fits, min(2 * size, self.batch_size) / seconds))
        sizes.largest, sizes.held = ladder.largest, ladder.base
        sizes.next_peak = ladder.predict_peak(min(2 * max(1, ladder.largest), ladder.max_size))
        if sizes.largest == ladder.max_size:
            evaluated_samples = min(default_batch_size(self.run), len(self.run.dataset.validation))
            sizes.fits_whole_batch = (
                ladder.base + (evaluation_peak - ladder.base) * evaluated_samples / ladder.max_size <= ladder.ceiling
            )
        return sizes

    def measure_training_peak(self, count: int, ceiling: int) -> tuple[int | None, float]:
        """Measure the peak of a training step with micro-batches of `count`, None if it does not fit; and its time."""
        step, seconds = self.run.step, 0.0
        step.use_micro_batch(count)
        try:
            # Only from the second step on does optimizer state exist while activations are at their peak.
            for _ in range(1 if self.is_warm else 2):
                self.meter.reset_peak()
                batch = self._next_batch()
                self.batch_peak = self.meter.peak()
                self.meter.reset_peak()
                self.bytes_before_step = self.meter.read_used()
                if max(self.batch_peak, self.bytes_before_step + self._bytes_to_come()) > ceiling:
                    return None, float("inf")
                with self.meter.guard(lambda: ceiling - self._bytes_to_come()):
                    seconds = self._time_step(batch, 2 * count)
        except (OutOfMemory, HalfUpdated, MemoryError):
            return None, float("inf")
        if step.forward.micro_batch != count:
            return None, float("inf")
        self.is_warm = True
        return self.meter.peak(), seconds

    def _bytes_to_come(self) -> int:
        """Return the bytes needed after the activations: gradients and, with the first update, optimizer state."""
        # A backward pass computes the gradient of the first parameter last.
        gradients = 1 if self.run.step.updater.parameters[0].grad is None else 0
        return self.weight_bytes * (gradients + (0 if self.is_warm else 2))

    def _next_batch(self) -> Batch:
        """Return the next whole batch, ready for a step."""
        return batch_inputs.prepare(self.run, next(self.training_batches), 0)

    def _time_step(self, batch: Batch, count: int) -> float:
        """Measure the seconds of a training step on the first `count` samples, with the whole batch in memory."""
        fault_point("size search step")
        run = self.run
        run.train_mode()
        start = time.perf_counter()
        run.step(next(batch.split(count)), batch_inputs.share_batch(run))
        synchronize(run.device)
        return time.perf_counter() - start

    @torch.inference_mode()
    def measure_evaluation_peak(self, count: int) -> int:
        """Measure the peak of an evaluation of `count` samples."""
        run = self.run
        run.model.eval()
        batch = next(self.validation_batches)
        self.meter.reset_peak()
        with run.ema.swap_in(run.model) if run.ema else contextlib.nullcontext():
            for part in run.step.forward.split(batch_inputs.preprocess(run, next(batch.split(count)), None)):
                run.step.forward.outputs(part.inputs)
        return self.meter.peak()

    def measure_speeds(self, sizes: Sequence[int]) -> dict[int, float]:
        """Measure samples per second by size on whole batches: the best of a few steps, in turn against noise."""
        speeds = dict.fromkeys(sizes, 0.0)
        for _ in range(SPEED_ROUNDS):
            for size in sizes:
                self.run.step.use_micro_batch(size)
                speeds[size] = max(speeds[size], self.batch_size / self._time_step(self._next_batch(), self.batch_size))
        return speeds

    def fixed_bytes(self) -> int:
        """Return the bytes in use in a step of any size: network, optimizer state, gradients and the whole batch."""
        return self.bytes_before_step + self.weight_bytes

    def compute_limit(self) -> int:
        """Compute the memory limit of a step, less a copy of the checkpoint if one is saved in the background."""
        run, limit = self.run, self.meter.read_ceiling()
        if run.device.type != "cpu" or parse_interval(run.job.checkpoint.every)[0] != "seconds":
            return limit
        state_bytes: int = sum(t.nbytes for t in run.model.state_dict().values())
        return limit - state_bytes * (2 if run.ema else 1) - 2 * self.weight_bytes


def _repeat_longest(split: Split, count: int, workers: int, pin: bool) -> Iterator[Batch]:
    """Repeat the batch of the longest samples (the first samples if all have the same length), loaded as in a run."""
    return batches.fetch(
        split, [longest_samples(split, count)] * 1000, workers=workers, pin=pin, report=lambda text: None
    )


MIN_STEP_FACTOR = 1.08
"""Smallest factor between two sizes that is worth a try."""
MULTIPLES_FROM = 4
"""Sizes above four times this number are multiples of it, except for the whole batch."""


@dataclass
class SizeLadder:
    """Chooses the next size to try from the peaks of earlier sizes. Sizes are in samples, memory is in bytes.

    A micro-batch of n samples adds at most n times the memory of one sample. So the peak of a larger size is predicted
    in proportion to a tried size: never too low, and more precise for larger tried sizes. Sizes double while they fit,
    then approach the limit as far as the prediction allows.
    """

    max_size: int
    """Batch size, or the number of samples if it is smaller."""
    base: int
    """Memory in use with any size; rather too low than too high."""
    ceiling: int
    min_size: int = 1
    peaks: dict[int, int] = field(default_factory=dict)
    """Peaks of the sizes that fit."""
    smallest_failed: int | None = None
    """Smallest size that did not fit."""

    @property
    def largest(self) -> int:
        """Largest size that fits; 0 if none does."""
        return max(self.peaks, default=0)

    def predict_peak(self, size: int) -> int:
        """Predict the peak with `size` samples at a time."""
        if not self.peaks:
            return self.base
        return self.base + (self.peaks[self.largest] - self.base) * size // self.largest

    def record(self, size: int, peak: int | None) -> None:
        """Record the peak of a tried size; None if it did not fit."""
        if peak is None or peak > self.ceiling:
            self.smallest_failed = min(size, self.smallest_failed or size)
        else:
            self.peaks[size] = peak

    def choose_next(self) -> int | None:
        """Choose the size to try next; None if there is nothing left to try."""
        if not self.peaks:
            return None if self.smallest_failed else min(self.min_size, self.max_size)
        size = min(2 * self.largest, self.max_size)
        if self.smallest_failed is not None:
            size = min(size, (self.largest + self.smallest_failed) // 2)
        added_bytes = self.peaks[self.largest] - self.base
        if added_bytes > 0:
            size = min(size, self.largest * max(0, self.ceiling - self.base) // added_bytes)
        if 4 * MULTIPLES_FROM < size < self.max_size:
            size -= size % MULTIPLES_FROM
        # The whole batch is always worth a try, because it needs no micro-batches.
        is_worth_it = size >= max(self.largest * MIN_STEP_FACTOR, self.largest + 1)
        return size if is_worth_it or size == self.max_size > self.largest else None
