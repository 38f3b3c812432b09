"""Searches the micro-batches that fit, with real training and evaluation steps on the longest samples.

The search has its own run with a copy of the network, which is discarded. On a CPU, a step that would exceed the limit is
stopped in the middle of its pass.
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
from drivetrain.training.lockstep import HalfUpdated
from drivetrain.training.run import Run
from drivetrain.training.torch_setup import synchronize
from drivetrain.tuning.memory import meter

SPEED_ROUNDS = 3
"""Number of timed steps for each size; the fastest counts."""


@dataclass(frozen=True)
class SizeTrial:
    """A tried size. Memory is in bytes."""

    size: int
    peak: int | None
    """Measured peak; None if the size did not fit."""
    speed: float
    """Samples per second of a step on two micro-batches."""


@dataclass
class SizeSearchResult:
    """Result of a search. Memory is in bytes."""

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
    recompute_reason: str = ""
    """Reason for recomputing blocks, if the search has decided it."""

    def peak(self, size: int) -> int:
        """Return the peak of a size that fits."""
        return next((t.peak for t in self.trials if t.size == size and t.peak is not None), self.base)

    def describe_failure(self) -> str:
        """Describe the smallest tried size, which does not fit."""
        smallest = self.trials[0].size if self.trials else 1
        return f"a micro-batch of {smallest} does not fit into {units.format_bytes(self.ceiling)}"

    def list_fitting(self) -> list[int]:
        """List the sizes that fit, largest first."""
        return sorted((t.size for t in self.trials if t.peak is not None and t.size <= self.largest), reverse=True)


class SizeSearch:
    """Tries increasing sizes with `run`, which has no other use; the network needs `min_size` samples or more."""

    def __init__(self, run: Run, min_size: int = 1) -> None:
        self.run, self.min_size, self.meter = run, min_size, meter.meter_for(run.device)
        run.step.report = lambda kind, text: None
        run.batches.report = lambda text: None
        self.batch_size = min(run.job.train.batch, len(run.dataset.train))
        self.use_size(self.batch_size)
        self.weight_bytes = sum(p.nbytes for p in run.step.updater.parameters)
        self.is_warm = False
        self.batch_peak = self.bytes_before_step = 0
        """Bytes that do not depend on the size: the peak while a batch is made, and the use before a step on it."""
        self.evaluation_peak = 0
        """Peak of the last evaluation."""

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
        base, ceiling, evaluation_peak = self.meter.read_used(), self.compute_limit(), 0
        sizes = SizeSearchResult(base, ceiling, self.run.plan.value("gradient_checkpointing") is True)
        ladder = SizeLadder(self.batch_size, self.min_size)
        size = ladder.choose_next()
        while size is not None:
            peak, seconds = self.measure_peak(size, ceiling)
            if peak is not None:
                evaluation_peak = self.evaluation_peak
            ladder.record(size, fits=peak is not None)
            sizes.trials.append(SizeTrial(size, peak, min(2 * size, self.batch_size) / seconds))
            size = ladder.choose_next()
        sizes.largest = ladder.largest
        if sizes.largest == ladder.max_size:
            # The activations of an evaluation grow with its batch, which may be larger than a training batch.
            evaluated_samples = min(default_batch_size(self.run), len(self.run.dataset.validation))
            fixed_bytes = self.bytes_before_step + self.weight_bytes
            growth = (evaluation_peak - fixed_bytes) * evaluated_samples / ladder.max_size
            sizes.fits_whole_batch = fixed_bytes + growth <= ceiling
        return sizes

    def measure_peak(self, count: int, ceiling: int) -> tuple[int | None, float]:
        """Measure the peak of training and evaluation with micro-batches of `count`, and the seconds of a training step.

        The peak is None if it does not fit.
        """
        peak, seconds = self.measure_training_peak(count, ceiling)
        if peak is None:
            return None, seconds
        self.evaluation_peak = self.measure_evaluation_peak(count)
        peak = max(peak, self.evaluation_peak)
        return (max(peak, self.batch_peak) if peak <= ceiling else None), seconds

    def measure_training_peak(self, count: int, ceiling: int) -> tuple[int | None, float]:
        """Measure the peak of a training step with micro-batches of `count`, None if it does not fit; and its time."""
        step, seconds = self.run.step, 0.0
        step.use_micro_batch(count)
        try:
            # Optimizer state exists only from the second step on while activations are at their peak.
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
        """Return the bytes that gradients and, in the first update, optimizer state will add to the activations."""
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
            evaluated = batch_inputs.preprocess(run, next(batch.split(count)), None)
            for micro_batch in run.step.forward.split(evaluated):
                run.step.forward.outputs(micro_batch.inputs)
        return self.meter.peak()

    def measure_speeds(self, sizes: Sequence[int]) -> dict[int, float]:
        """Measure samples per second by size on whole batches: the best of a few steps, in turn so that noise hits all."""
        speeds = dict.fromkeys(sizes, 0.0)
        for _ in range(SPEED_ROUNDS):
            for size in sizes:
                self.run.step.use_micro_batch(size)
                speeds[size] = max(speeds[size], self.batch_size / self._time_step(self._next_batch(), self.batch_size))
        return speeds

    def compute_limit(self) -> int:
        """Compute the memory limit of a step, minus a copy of the checkpoint if checkpoints are saved in the background."""
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
"""Smallest factor between two sizes for trying the larger one."""
MULTIPLES_FROM = 4
"""Above four times this number, sizes between two others are multiples of it."""


@dataclass
class SizeLadder:
    """Chooses the next size to try: twice the largest that fits, then halfway between it and the smallest that does not."""

    max_size: int
    """Batch size, or the number of samples if it is smaller."""
    min_size: int = 1
    largest: int = 0
    """Largest size that fits; 0 if none does."""
    smallest_failed: int | None = None
    """Smallest size that did not fit."""

    def record(self, size: int, *, fits: bool) -> None:
        """Record a tried size."""
        if fits:
            self.largest = size
        else:
            self.smallest_failed = size

    def choose_next(self) -> int | None:
        """Choose the size to try next; None if there is nothing left to try."""
        if not self.largest:
            return None if self.smallest_failed else min(self.min_size, self.max_size)
        if self.smallest_failed is None:
            return min(2 * self.largest, self.max_size) if self.largest < self.max_size else None
        size = (self.largest + self.smallest_failed) // 2
        if size > 4 * MULTIPLES_FROM:
            size -= size % MULTIPLES_FROM
        return size if size >= max(self.largest * MIN_STEP_FACTOR, self.largest + 1) else None
