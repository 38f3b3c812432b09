"""Ours: what `drivetrain train` runs in its trainer, driven from outside: plan, data, loop and records are the product's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest.pace import Pace
from drivetrain.data.dataset import Split
from drivetrain.data.load_data import load
from drivetrain.data.stateless_random import Ids
from drivetrain.hardware import facts
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.build import build
from drivetrain.plan import plan as plans
from drivetrain.system.files import read_json
from drivetrain.system.signals import Signals
from drivetrain.training import train
from drivetrain.training.assemble import Assembly
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import assembly


class PacedSignals(Signals):
    """Where a run checks whether it is stopped, between two steps, it waits for the next order."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace
        self.run: Any = None
        self.step = 0
        self.counts: dict[int, list[int]] = {}

    def check(self) -> None:
        """As in any run; after a step, hand over to the pace."""
        super().check()
        if self.run is None or self.run.counters.step == self.step:
            return
        counters, phases = self.run.counters, self.run.clock.phases
        self.step = counters.step
        self.pace.end_step(
            self._count_samples(counters.epoch, counters.batch - 1),
            phases.get("evaluate", 0.0) + phases.get("checkpoint", 0.0),
        )

    def _count_samples(self, epoch: int, batch: int) -> int:
        """Samples or tokens of a batch; the order of an epoch is drawn once, not within a step that is timed."""
        train, batches = self.run.dataset.train, self.run.batches
        if not hasattr(train, "lengths"):
            return int(batches.size(batch))
        if epoch not in self.counts:
            self.counts = {epoch: [count_samples(train, ids) for ids in batches.order(epoch)]}
        return self.counts[epoch][batch]


def count_samples(split: Split, ids: Ids) -> int:
    """Samples, or tokens of texts."""
    return int(split.lengths[ids].sum()) if hasattr(split, "lengths") else len(ids)


def train_by_order(job: Path, folder: Path, make_pace: Callable[[int], Pace]) -> None:
    """A long run by order; `make_pace` takes the steps of warm-up: those of an epoch where images are decoded once."""
    signals = PacedSignals(Pace())
    run = assembly.assemble_run(folder, job_spec.load(job), signals, PhaseTimer())
    warm_up = run.batches.per_epoch if run.plan.value("decode_cache") and not run.dataset.decoded else 0
    signals.pace, signals.run = make_pace(warm_up), run
    train.train(run)


def prepare_whole_run(job_file: Path, folder: Path) -> Callable[[], int]:
    """Load the data; returns a function that does a whole run, up to the finished model, and returns its samples or
    tokens.
    """
    job = job_spec.load(job_file)
    data, machine = load(job), facts.from_json(read_json(folder / "hardware.json"))

    def run() -> int:
        data.cache.clear()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name in ("hardware.json", "plan.json"):
                shutil.copy(folder / name, scratch)
            plan = plans.load(folder / "plan.json")
            training_run = Assembly(job, machine, plan, Path(scratch), data, build(job, data), Signals()).assemble()
            train.train(training_run)
            return count_samples(data.train, np.arange(len(data.train))) * training_run.counters.epoch

    return run
