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
from drivetrain.training import run as runs
from drivetrain.training import train
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import assembly


class Stops(Signals):
    """The place in the loop where a run may be stopped is where it waits for the next order."""

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
        self.pace.step(
            self._amount(counters.epoch, counters.batch - 1),
            phases.get("evaluate", 0.0) + phases.get("checkpoint", 0.0),
        )

    def _amount(self, epoch: int, batch: int) -> int:
        """What a batch counts; the order of an epoch is drawn once, not within a step that is timed."""
        train, batches = self.run.dataset.train, self.run.batches
        if not hasattr(train, "lengths"):
            return int(batches.size(batch))
        if epoch not in self.counts:
            self.counts = {epoch: [amount(train, ids) for ids in batches.order(epoch)]}
        return self.counts[epoch][batch]


def amount(split: Split, ids: Ids) -> int:
    """Samples, or tokens of texts."""
    return int(split.lengths[ids].sum()) if hasattr(split, "lengths") else len(ids)


def steps(job: Path, folder: Path, paced: Callable[[int], Pace]) -> None:
    """A long run by order; `paced` makes the pace for so many steps of warm-up: an epoch where images are decoded once."""
    signals = Stops(Pace())
    run = assembly.assemble_run(folder, job_spec.load(job), signals, PhaseTimer())
    filling = run.batches.per_epoch if run.plan.value("decode_cache") and not run.dataset.decoded else 0
    signals.pace, signals.run = paced(filling), run
    train.train(run)


def work(job_file: Path, folder: Path) -> Callable[[], int]:
    """A whole run, data loaded: assembling, training, validation, records, the finished model; what its steps count."""
    job = job_spec.load(job_file)
    data, machine = load(job), facts.from_json(read_json(folder / "hardware.json"))

    def run() -> int:
        data.cache.clear()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name in ("hardware.json", "plan.json"):
                shutil.copy(folder / name, scratch)
            plan = plans.load(folder / "plan.json")
            made = runs.assemble(job, machine, plan, Path(scratch), data, build(job, data), Signals(), PhaseTimer())
            train.train(made)
            return amount(data.train, np.arange(len(data.train))) * made.counters.epoch

    return run
