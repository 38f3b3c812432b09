"""Searches the micro-batches that fit, with real training and evaluation steps at the largest shapes.

It works on a run of its own, with a copy of the network that is discarded. Each size is predicted from those before, so
on a CPU no step is started that would reach the limit.
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
from drivetrain.training.agreement import HalfUpdated
from drivetrain.training.evaluation.validation import default_batch_size
from drivetrain.training.run import Run
from drivetrain.tuning.memory import meter
from drivetrain.tuning.memory.size_ladder import SizeLadder

ROUNDS = 3


@dataclass(frozen=True)
class SizeTrial:
    """One size that was tried; memory in bytes."""

    size: int
    predicted: int | None
    """None for the first, which has no basis for a prediction."""
    peak: int | None
    """None if it did not fit."""
    speed: float
    """Samples per second of a step on two micro-batches."""


@dataclass
class SizeSearchResult:
    """The result of a search; memory in bytes."""

    base: int
    """In use before the first step."""
    ceiling: int
    """The limit."""
    recompute: bool
    """Whether blocks were recomputed."""
    tries: list[SizeTrial] = field(default_factory=list)
    largest: int = 0
    """The largest size that fits; 0 if the smallest does not."""
    whole: bool = False
    """Whether the whole batch fits, and an evaluation with its usual size."""
    held: int = 0
    """In use whatever the size, including optimizer state and gradients."""
    next_peak: int = 0
    """Predicted peak of the next size: the whole batch, or twice the largest."""
    why: str = ""
    """Why blocks were recomputed, if that was decided here."""

    def peak(self, size: int) -> int:
        """The peak of a size that fits."""
        return next((t.peak for t in self.tries if t.size == size and t.peak is not None), self.base)

    def describe_failure(self) -> str:
        """Error message: no micro-batch size fits."""
        least = self.tries[0].size if self.tries else 1
        return f"a micro-batch of {least} does not fit into {units.format_bytes(self.ceiling)}"

    def sizes(self) -> list[int]:
        """The sizes that fit, largest first."""
        return sorted((t.size for t in self.tries if t.peak is not None and t.size <= self.largest), reverse=True)


class SizeSearch:
    """Tries increasing sizes with one run.

    Args:
        run: an assembled run that is used for nothing else.
        least: the smallest size that the network can be trained with.
    """

    def __init__(self, run: Run, least: int = 1) -> None:
        self.run, self.least, self.gauge = run, least, meter.of(run.device)
        run.configure_step(report_memory=lambda text: None)
        run.batches.tell = lambda text: None
        self.batch_size = min(run.job.train.batch, len(run.dataset.train))
        self.use_size(self.batch_size)
        self.trained = int(sum(p.numel() * p.element_size() for p in run.step.parameters))
        self.warm = False
        self.made = self.beside = 0
        """Bytes, whatever the size: the peak while a batch is made, and what is in use beside a step on it."""

    def use_size(self, batch_size: int) -> None:
        """From now on use whole batches of so many samples."""
        settings, data = self.run.batches, self.run.dataset
        self.batch_size = batch_size
        self.feed = _largest(data.train, batch_size, settings.workers_for(data.train, batch_size), settings.pin)
        self.held = _largest(data.validation, batch_size, 0, False)

    def climb(self) -> SizeSearchResult:
        """Try sizes until there is nothing left to try."""
        self.gauge.begin()
        ladder = SizeLadder(self.batch_size, self.gauge.used(), self.limit(), self.least)
        sizes = SizeSearchResult(ladder.base, ladder.ceiling, self.run.plan.value("gradient_checkpointing") is True)
        evaluated = ladder.base
        while (now := ladder.next()) is not None:
            predicted = ladder.predicted(now) if ladder.peaks else None
            peak, seconds = self.tried(now, ladder.ceiling)
            if peak is not None:
                evaluated = self.evaluated(now)
                peak = max(peak, evaluated)
            ladder.note(now, peak)
            if predicted is None:
                ladder.base = self.held_anyway()
            fits = max(ladder.peaks[now], self.made) if now in ladder.peaks else None
            sizes.tries.append(SizeTrial(now, predicted, fits, min(2 * now, self.batch_size) / seconds))
        sizes.largest, sizes.held = ladder.largest, ladder.base
        sizes.next_peak = ladder.predicted(min(2 * max(1, ladder.largest), ladder.most))
        if sizes.largest == ladder.most:
            most = min(default_batch_size(self.run), len(self.run.dataset.validation))
            sizes.whole = ladder.base + (evaluated - ladder.base) * most / ladder.most <= ladder.ceiling
        return sizes

    def tried(self, count: int, ceiling: int) -> tuple[int | None, float]:
        """The peak of a training step with micro-batches of `count` samples, None if it does not fit; and its
        seconds.
        """
        step, seconds = self.run.step, 0.0
        step.use_micro_batch(count)
        try:
            # Optimizer state exists only from the second step on, while activations are at their peak.
            for _ in range(1 if self.warm else 2):
                self.gauge.begin()
                batch = self._batch()
                self.made = self.gauge.peak()
                self.gauge.begin()
                self.beside = self.gauge.used()
                if max(self.made, self.beside + self._coming()) > ceiling:
                    return None, float("inf")
                with self.gauge.guard(lambda: ceiling - self._coming()):
                    seconds = self._step(batch, 2 * count)
        except (OutOfMemory, HalfUpdated, MemoryError):
            return None, float("inf")
        if step.micro_batch != count:
            return None, float("inf")
        self.warm = True
        return self.gauge.peak(), seconds

    def _coming(self) -> int:
        """Bytes still to come after the activations: gradients and, with the first update, optimizer state."""
        # A backward pass computes the gradient of the first parameter last.
        gradients = 1 if self.run.step.parameters[0].grad is None else 0
        return self.trained * (gradients + (0 if self.warm else 2))

    def _batch(self) -> Batch:
        """A whole batch, ready for a step."""
        return self.run.mix(self.run.preprocess(next(self.feed), 0))

    def _step(self, batch: Batch, count: int) -> float:
        """Seconds of a training step on the first `count` samples, with the whole batch in memory."""
        fault_point("size search step")
        run = self.run
        run.train_mode()
        start = time.perf_counter()
        run.step(next(batch.split(count)), run.step_seed())
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    @torch.inference_mode()
    def evaluated(self, count: int) -> int:
        """The peak of an evaluation of `count` samples."""
        run = self.run
        run.model.eval()
        batch = next(self.held)
        self.gauge.begin()
        with run.ema.swap_in(run.model) if run.ema else contextlib.nullcontext():
            for part in run.step.micro_batches(run.preprocess(next(batch.split(count)), None)):
                run.step.outputs(part.inputs)
        return self.gauge.peak()

    def speeds(self, sizes: Sequence[int]) -> dict[int, float]:
        """Samples per second by size on whole batches: the best of a few steps, in turn, so that noise hits all
        sizes.
        """
        speed_of = dict.fromkeys(sizes, 0.0)
        for _ in range(ROUNDS):
            for size in sizes:
                self.run.step.use_micro_batch(size)
                speed_of[size] = max(speed_of[size], self.batch_size / self._step(self._batch(), self.batch_size))
        return speed_of

    def held_anyway(self) -> int:
        """Bytes in use in a step whatever its size: network, optimizer state, gradients and the whole batch."""
        return self.beside + self.trained

    def limit(self) -> int:
        """The limit for a step."""
        return self.gauge.ceiling() - self._copies()

    def _copies(self) -> int:
        """Bytes on the host for saving in the background beside a step: a copy of the checkpoint."""
        run = self.run
        if run.device.type != "cpu" or parse_interval(run.job.checkpoint.every)[0] != "seconds":
            return 0
        weights = int(sum(t.numel() * t.element_size() for t in run.model.state_dict().values()))
        return weights * (2 if run.ema else 1) + 2 * self.trained


def _largest(split: Split, count: int, workers: int, pin: bool) -> Iterator[Batch]:
    """The batch of the longest samples (the first ones if all have the same length), repeated, loaded as in a run."""
    return batches.fetch(
        split, [longest_samples(split, count)] * 1000, workers=workers, pin=pin, report=lambda text: None
    )
