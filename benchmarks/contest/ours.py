"""Ours: what `drivetrain train` runs in its trainer, driven from outside: plan, data, loop and records are the product's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest.pace import Pace
from runtime import hardware, spec, trainer
from runtime import plan as plans
from runtime import run as runs
from runtime.clock import Clock
from runtime.data.load import load
from runtime.files import read_json
from runtime.models.build import build
from runtime.signals import Signals


class Stops(Signals):
    """The place in the loop where a run may be stopped is where it waits for the next order."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace
        self.run: Any = None
        self.step = self.samples = 0

    def check(self) -> None:
        """As in any run; after a step, hand over to the pace."""
        super().check()
        if self.run is None or self.run.counters.step == self.step:
            return
        counters, phases = self.run.counters, self.run.clock.phases
        count, self.step, self.samples = counters.samples - self.samples, counters.step, counters.samples
        self.pace.step(count, phases.get("evaluate", 0.0) + phases.get("checkpoint", 0.0))


def steps(job: Path, folder: Path, paced: Callable[[int], Pace]) -> None:
    """A long run by order; `paced` makes the pace for so many steps of warm-up: an epoch where images are decoded once."""
    signals = Stops(Pace())
    run = trainer.assembled(folder, spec.load(job), signals, Clock())
    filling = run.batches.per_epoch if run.plan.value("decode_cache") and not run.dataset.decoded else 0
    signals.pace, signals.run = paced(filling), run
    trainer.conduct(run)


def work(job_file: Path, folder: Path) -> Callable[[], int]:
    """A whole run, data loaded: assembling, training, validation, records, the finished model; its samples."""
    job = spec.load(job_file)
    data, machine = load(job), hardware.from_json(read_json(folder / "hardware.json"))

    def run() -> int:
        data.kept.clear()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name in ("hardware.json", "plan.json"):
                shutil.copy(folder / name, scratch)
            plan = plans.load(folder / "plan.json")
            made = runs.assemble(job, machine, plan, Path(scratch), data, build(job, data), Signals(), Clock())
            trainer.conduct(made)
            return int(made.counters.samples)

    return run
