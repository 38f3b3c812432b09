"""Finds the micro-batch for `micro_batch: auto`: the fastest of the sizes that fit in memory.

It measures real steps on a copy of the network, so model, optimizer, buffers and random state of the run do not change.
If not even one sample fits, blocks are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from drivetrain.optimizations import Effect, Value, gradient_checkpointing, micro_batch
from drivetrain.plan import evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import CHOICE, format_value
from drivetrain.system.units import format_bytes
from drivetrain.training.assemble import Assembly
from drivetrain.tuning.memory import meter
from drivetrain.tuning.memory.size_search import SizeSearch, SizeSearchResult

MIN_SPEEDUP = 1.05
"""Factor in speed that a smaller size must gain over the largest."""
MIN_STEPS = 50
"""Minimum number of steps of a run for comparing speeds."""
COMPARED_SIZES = 3
"""Number of the largest sizes whose speeds are compared."""


class MicroBatchSearch:
    """Searches for one run, with copies of its network."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.job, self.plan, self.facts, self.say = assembly.job, assembly.plan, assembly.facts, assembly.say

    def measure(self) -> dict[str, Measurement]:
        """Measure the micro-batch and whether blocks are recomputed; empty if the job does not ask for it."""
        if self.job.optimize.get("micro_batch") != "auto" or self._source("micro_batch") != CHOICE:
            return {}
        if self.facts.indivisible:
            self.say(f"fit: micro_batch is not searched: {self.facts.indivisible}")
            return {}
        sizes, speeds = self._search_with_and_without_recomputing()
        # This collects garbage: the copy of the network is in reference cycles, and the run needs its memory.
        meter.meter_for(torch.device("cuda:0" if self.assembly.hardware.gpu else "cpu")).reset_peak()
        value = choose_size(sizes, speeds, self._leaves_single_sample)
        result = describe_choice(sizes, speeds, value, self.job.train.batch, self._has_batch_norm)
        self.say(f"fit: micro_batch {format_value(value)}: {result['micro_batch'].text}")
        return result

    def _search_with_and_without_recomputing(self) -> tuple[SizeSearchResult, dict[int, float]]:
        """Find the sizes that fit, and the samples per second of the largest sizes if there is a choice."""
        recompute = self.plan.value("gradient_checkpointing") is True
        with torch.random.fork_rng():
            sizes, speeds = self._search_sizes(recompute)
            # The job, the plan or the network may leave no choice about recomputing.
            may_decide = self._source("gradient_checkpointing") == CHOICE and not recompute
            if not may_decide or gradient_checkpointing.refuse(self.job, self.assembly.hardware, self.facts, True):
                return sizes, speeds
            # Not even the smallest size fits: only recomputing can help.
            if sizes.largest == 0:
                self.say(f"fit: {sizes.describe_failure()}; retrying with gradient_checkpointing")
                sizes, speeds = self._search_sizes(True)
                return replace(sizes, recompute_reason="without it even the smallest micro-batch does not fit"), speeds
            # Recomputing may pay off with larger micro-batches: in speed, if it was measured, or for BatchNorm.
            batch = min(self.job.train.batch, len(self.assembly.dataset.train))
            if sizes.largest < batch and (speeds or self._has_batch_norm):
                self.say(f"fit: {batch} samples do not fit into memory at once; retrying with gradient_checkpointing")
                recomputed_sizes, recomputed_speeds = self._search_sizes(True)
                norm_samples = recomputed_sizes.largest if self._has_batch_norm else 0
                reason = explain_recomputing(speeds, recomputed_speeds, norm_samples, batch)
                if reason:
                    return replace(recomputed_sizes, recompute_reason=reason), recomputed_speeds
            return sizes, speeds

    def _search_sizes(self, recompute: bool) -> tuple[SizeSearchResult, dict[int, float]]:
        """Find the sizes that fit, and the samples per second of the largest sizes if speed may decide."""
        search = self.prepare_search(recompute)
        sizes = search.search_sizes()
        # With BatchNorm the largest size is used at any speed. For a short run, measuring speeds does not pay off.
        compare_speeds = sizes.largest > 1 and not self._has_batch_norm and search.run.total_steps >= MIN_STEPS
        return sizes, search.measure_speeds(sizes.list_fitting()[:COMPARED_SIZES]) if compare_speeds else {}

    def prepare_search(self, recompute: bool) -> SizeSearch:
        """Return a search with a copy of the network and the plan without the searched settings."""
        # Every size would be compiled separately.
        values: dict[str, Value] = {"gradient_checkpointing": recompute, "micro_batch": "off", "compile": False}
        # The epoch with the most trainable layers needs the most memory, and has little to cache.
        last_epoch = self.assembly.built_model.unfreezing.last
        if last_epoch:
            values["feature_cache"] = False
        run = self.assembly.assemble_copy(self.plan.with_values(values), last_epoch)
        return SizeSearch(run, 2 if self._has_batch_norm else 1)  # a single sample has no variance

    @property
    def _has_batch_norm(self) -> bool:
        """Whether the network has BatchNorm, whose statistics change with the size of a micro-batch."""
        return micro_batch.EFFECT(self.facts) is Effect.TRAINING

    def _leaves_single_sample(self, count: int) -> bool:
        """Return whether BatchNorm would get a micro-batch of a single sample, which has no variance."""
        batch = self.job.train.batch
        # A single sample may be left of a whole batch, or of the last batch of an epoch.
        totals = (batch, len(self.assembly.dataset.train) % batch)
        return self._has_batch_norm and any(total > count and total % count == 1 for total in totals)

    def _source(self, name: str) -> str:
        return self.plan.decision(name).source


def explain_recomputing(
    without: Mapping[int, float], with_recomputing: Mapping[int, float], norm_samples: int, batch: int
) -> str:
    """Explain why larger micro-batches with recomputed blocks are better than smaller ones without; empty if not.

    Speeds are samples per second by size. `norm_samples` is the size of a BatchNorm call, 0 without BatchNorm.
    """
    if norm_samples == batch:
        return f"with gradient checkpointing all {batch} samples fit at once, so BatchNorm sees the whole batch"
    if not without or not with_recomputing:
        return ""
    speed, speed_without = max(with_recomputing.values()), max(without.values())
    if speed <= MIN_SPEEDUP * speed_without:
        return ""
    return f"{speed:.0f} samples/s with gradient checkpointing, {speed_without:.0f} with smaller micro-batches"


def choose_size(
    sizes: SizeSearchResult,
    speeds: Mapping[int, float],
    leaves_single_sample: Callable[[int], bool] = lambda count: False,
) -> Value:
    """Choose the largest micro-batch that fits, unless a smaller one is clearly faster; `off` for the whole batch."""
    # If nothing fits, the smallest size is used, and training reports the needed memory.
    largest = sizes.largest or sizes.trials[0].size
    # This happens only with BatchNorm and then no speeds are measured, so `largest` below is a size with a speed.
    while largest > 2 and leaves_single_sample(largest):
        largest -= 1
    fastest = max(speeds, key=lambda count: speeds[count], default=largest)
    if speeds and speeds[fastest] < MIN_SPEEDUP * speeds[largest]:
        fastest = largest
    return "off" if sizes.fits_whole_batch and fastest == sizes.largest else fastest


def describe_choice(
    sizes: SizeSearchResult, speeds: Mapping[int, float], value: Value, batch_size: int, has_batch_norm: bool
) -> dict[str, Measurement]:
    """Return the decisions with a description of their numbers."""
    today = evidence.format_date()
    allowed = f"{format_bytes(sizes.ceiling)} available"
    if not sizes.largest:
        text = f"{sizes.describe_failure()}; this is the smallest possible"
    else:
        text = f"{format_bytes(sizes.peak(sizes.largest))} peak memory with micro-batch {sizes.largest}, {allowed}"
    if has_batch_norm and sizes.largest < batch_size:
        text += f"; the whole batch does not fit, so BatchNorm sees {value} samples at a time"
    if speeds:
        text += "; samples/s: " + ", ".join(f"{count}: {speed:.0f}" for count, speed in speeds.items())
    result = {"micro_batch": Measurement(value, text, today)}
    if sizes.recompute_reason:
        result["gradient_checkpointing"] = Measurement(True, sizes.recompute_reason, today)
    return result
