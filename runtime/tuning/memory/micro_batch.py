"""Finds the micro-batch for `micro_batch: auto`: which sizes fit in memory, and which of them is fastest.

Measured with real steps on a copy of the network, so model, optimizer, buffers and random state of the run do not
change. If not even one sample fits, blocks are recomputed. Results are cached for this network on this machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from runtime.data.dataset import Dataset
from runtime.errors import StorageError
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job.workload import Workload
from runtime.models.build import Model
from runtime.optimizations import Effect, Value, gradient_checkpointing, micro_batch
from runtime.plan import evidence
from runtime.plan.evidence import Measurement
from runtime.plan.plan import OPEN, Plan, written
from runtime.system.signals import Signals
from runtime.system.units import format_bytes
from runtime.training.phase_timer import PhaseTimer
from runtime.training.run import assemble
from runtime.training.user_parts import UserParts
from runtime.tuning.memory import meter
from runtime.tuning.memory.size_search import SizeSearch, SizeSearchResult

FASTER = 1.05
"""Speedup that a smaller size must have over the largest."""
WORTH_FROM = 50
"""Steps of a run from which on the fastest size is searched."""
NEED = "memory"
"""The evidence stores under this name how many bytes the chosen size adds."""


@dataclass
class MicroBatchSearch:
    """The search for one job.

    Args:
        plan: all decisions so far.
        facts: properties of model and data.
        say: reports progress.
    """

    job: Job
    hardware: Hardware
    plan: Plan
    dataset: Dataset
    network: Model
    facts: Workload
    folder: Path
    signals: Signals
    say: Callable[[str], None]
    parts: UserParts | None = None

    def measured(self) -> dict[str, Measurement]:
        """Results for the plan: the micro-batch, and whether blocks are recomputed; empty if the job does not
        request it.
        """
        if self.job.optimize.get("micro_batch") != "auto" or self._source("micro_batch") not in OPEN:
            return {}
        if self.facts.indivisible:
            self.say(f"fit: micro_batch is not searched: {self.facts.indivisible}")
            return {}
        name = self._key()
        known = evidence.load(self.hardware, name)
        if known and self._still_fits(known):
            self.say(f"fit: measured before, on {known['micro_batch'].date}; reusing the results")
            return _decisions(known)
        found, speeds = self.found()
        self._meter().begin()  # the copy of the network is freed only by the garbage collector
        value = chosen(found, speeds, self._alone)
        result = worded(found, speeds, value, self.job.train.batch, self._splits_norm)
        need = found.peak(found.largest) - found.base
        result[NEED] = Measurement(need, f"{format_bytes(need)} of additional memory", evidence.today())
        self.say(f"fit: micro_batch {written(value)}: {result['micro_batch'].text}")
        if found.largest:
            self._keep(name, result)
        return _decisions(result)

    def found(self) -> tuple[SizeSearchResult, dict[int, float]]:
        """The sizes that fit, and samples per second of the best ones if there is a choice."""
        recompute = self.plan.value("gradient_checkpointing") is True
        with torch.random.fork_rng():
            found, speeds = self._climbed(recompute)
            open_ = self._source("gradient_checkpointing") in OPEN and not recompute
            if not open_ or gradient_checkpointing.refuse(self.job, self.hardware, self.facts, True):
                return found, speeds
            if found.largest == 0:
                self.say(f"fit: {found.tried_in_vain()}; retrying with gradient_checkpointing")
                found, speeds = self._climbed(True)
                return replace(found, why="without it even the smallest micro-batch does not fit"), speeds
            batch = min(self.job.train.batch, len(self.dataset.train))
            if found.largest < batch and (speeds or self._splits_norm):
                self.say(f"fit: {batch} samples do not fit into memory at once; retrying with gradient_checkpointing")
                other, others = self._climbed(True)
                if why := recomputing_pays(speeds, others, other.largest if self._splits_norm else 0, batch):
                    return replace(other, why=why), others
            return found, speeds

    def _climbed(self, recompute: bool) -> tuple[SizeSearchResult, dict[int, float]]:
        """The sizes that fit, and samples per second of the best ones if that may decide something."""
        search = self.search(recompute)
        found = search.climb()
        choice = found.largest > 1 and not self._splits_norm and search.run.total_steps >= WORTH_FROM
        return found, search.speeds(found.sizes()[:3]) if choice else {}

    def search(self, recompute: bool) -> SizeSearch:
        """A search with a copy of the network, under the plan except for what is searched."""
        # Every size would be compiled separately.
        fixed: dict[str, Value] = {"gradient_checkpointing": recompute, "micro_batch": "off", "compile": False}
        last = self.network.unfreezing.last
        if last:  # the last epochs need the most memory, and have little to cache
            fixed["feature_cache"] = False
        plan = self.plan.with_values(fixed)
        network = replace(self.network, module=copy.deepcopy(self.network.module))
        made = assemble(
            self.job,
            self.hardware,
            plan,
            self.folder,
            self.dataset,
            network,
            self.signals,
            PhaseTimer(),
            last,
            self.parts,
        )
        return SizeSearch(made, 2 if self._splits_norm else 1)

    @property
    def _splits_norm(self) -> bool:
        return micro_batch.EFFECT(self.facts) is Effect.TRAINING

    def _alone(self, count: int) -> bool:
        """Whether BatchNorm would get a micro-batch of a single sample, which has no variance."""
        batch = self.job.train.batch
        return self._splits_norm and any(n > count and n % count == 1 for n in (batch, len(self.dataset.train) % batch))

    def _source(self, name: str) -> str:
        return self.plan.row(name).source

    def _meter(self) -> meter.Gauge:
        return meter.of(torch.device("cuda:0" if self.hardware.gpu else "cpu"))

    def _still_fits(self, known: Mapping[str, Measurement]) -> bool:
        meter = self._meter()
        meter.begin()
        return NEED in known and meter.used() + int(known[NEED].value) <= meter.ceiling()

    def _key(self) -> str:
        train, limit = self.job.train, self.hardware.memory.limit
        shapes = {name: list(value.shape) for name, value in self.network.module.state_dict().items()}
        values = self.plan.values()
        longest = max(getattr(self.dataset.train, "lengths", [0]), default=0)
        fixed = [
            "fit",
            train.optimizer.kind,
            str(train.loss),
            train.ema,
            values,
            limit,
            int(longest),
            str(getattr(self.job.data, "augment", None)),
            self.job.checkpoint.every,
            *self.network.unfreezing.first,
        ]
        return evidence.key(self.hardware, self.facts, train.batch, shapes, fixed)

    def _keep(self, name: str, result: Mapping[str, Measurement]) -> None:
        try:
            evidence.store(self.hardware, name, result)
        except (OSError, StorageError) as error:
            self.say(f"fit: the measurements could not be stored: {error}")


def recomputing_pays(without: Mapping[int, float], with_it: Mapping[int, float], normed: int, batch: int) -> str:
    """Why larger micro-batches with recomputed blocks are better than smaller ones without; empty if they are not.

    Args:
        without: samples per second by size, without recomputation.
        with_it: the same with recomputed blocks.
        normed: samples per BatchNorm call with recomputed blocks; 0 without BatchNorm.
        batch: size of the whole batch.
    """
    if normed == batch:
        return f"with gradient checkpointing all {batch} samples fit at once, so BatchNorm sees the whole batch"
    if without and with_it and max(with_it.values()) > FASTER * max(without.values()):
        return f"{max(with_it.values()):.0f} samples/s with gradient checkpointing, {max(without.values()):.0f} with smaller micro-batches"
    return ""


def chosen(
    found: SizeSearchResult, speeds: Mapping[int, float], alone: Callable[[int], bool] = lambda count: False
) -> Value:
    """The micro-batch: the largest that fits, unless a smaller one is clearly faster; `off` for the whole batch."""
    largest = found.largest or found.tries[0].size
    while largest > 2 and alone(largest):
        largest -= 1
    best = max(speeds, key=lambda count: speeds[count], default=largest)
    if speeds and speeds[best] < FASTER * speeds[largest]:
        best = largest
    return "off" if found.whole and best == found.largest else best


def worded(
    found: SizeSearchResult, speeds: Mapping[int, float], value: Value, batch_size: int, splits_norm: bool
) -> dict[str, Measurement]:
    """The decisions with their numbers."""
    today = evidence.today()
    allowed = f"{format_bytes(found.ceiling)} available"
    if not found.largest:
        text = f"{found.tried_in_vain()}; this is the smallest possible"
    else:
        text = f"{format_bytes(found.peak(found.largest))} peak memory with micro-batch {found.largest}, {allowed}"
    if 0 < found.largest < batch_size and not found.whole:
        text += f", {min(2 * found.largest, batch_size)} would take {format_bytes(found.above)}"
    if splits_norm and found.largest < batch_size:
        text += f"; the whole batch does not fit, so BatchNorm sees {value} samples at a time"
    if speeds:
        text += "; samples/s: " + ", ".join(f"{count}: {speed:.0f}" for count, speed in speeds.items())
    result = {"micro_batch": Measurement(value, text, today)}
    if found.why:
        result["gradient_checkpointing"] = Measurement(True, found.why, today)
    return result


def _decisions(known: Mapping[str, Measurement]) -> dict[str, Measurement]:
    return {name: row for name, row in known.items() if name != NEED}
