"""What checkpoints cost: the same steps with and without saving, in turn, by wall clock and by processor time.

    python benchmarks/saving.py [--models small-cnn resnet18] [--pairs 5] [--seconds 12] [--every 1s]

Each block with saving makes ten saves or more, much more often than the default of five minutes, as the saver itself
decides when. From the seconds that a save adds follows what it adds at the default interval. All files go to a folder
of `--folder`, which should lie on the disk that runs/ lies on.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivetrain.hardware.detect import detect
from drivetrain.job.values import parse_duration
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan
from drivetrain.system.files import write_json
from drivetrain.system.signals import Signals
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.saver import MAX_SAVE_SHARE, Saver
from drivetrain.training.step_records import StepRecords
from drivetrain.tuning import assembly

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = 300.0
"""Seconds between two saves by default."""


class Still:
    """Progress that shows nothing."""

    def report_step(self, *given: Any) -> None:
        """Nothing."""


class Bench:
    """One assembled run whose steps are timed."""

    def __init__(self, model: str, every: str, folder: Path) -> None:
        job = job_spec.load(
            ROOT / "jobs" / "digits.yaml",
            [f"model.name={model}", "optimize.measure=off", "train.epochs=1000", f"checkpoint.every={every}"],
        )
        machine = detect(folder)
        write_json(folder / "hardware.json", machine.to_json())
        write_json(folder / "plan.json", plan.resolve(job, machine).to_json())
        self.run = assembly.assemble_run(folder, job, Signals(), PhaseTimer())
        self.run.metrics = MetricsLog(folder)
        self.run.train_mode()
        self.saver = Saver(self.run)
        self.saver.save_final()
        self.records = StepRecords(self.run, self.saver, Still())  # type: ignore[arg-type]
        self.batches = self._batches()

    def _batches(self) -> Iterator[Any]:
        for epoch in itertools.count():
            self.run.counters.epoch, self.run.counters.batch = epoch, 0
            yield from self.run.batches.epoch(epoch)

    def block(self, steps: int, *, saving: bool) -> tuple[float, float, int]:
        """Wall seconds, processor seconds and saves of so many steps."""
        saves, wall, used = 0, time.perf_counter(), time.process_time()
        self.saver.saved_at = time.monotonic()
        for _ in range(steps):
            loop.train_step(self.run, self.records, next(self.batches))
            if saving and self.saver.is_due():
                self.saver.save_periodically()
                saves += 1
        self.saver.wait()
        return time.perf_counter() - wall, time.process_time() - used, saves

    def size(self) -> int:
        """Bytes of the last checkpoint."""
        last = max((self.run.checkpoints).glob("step-*"), key=lambda path: path.stat().st_mtime)
        return sum(path.stat().st_size for path in last.iterdir())


def measure(model: str, every: str, pairs: int, seconds: float, folder: Path) -> None:
    """Measure pairs of blocks, print a row for each and what follows."""
    bench = Bench(model, every, folder)
    bench.block(30, saving=False)
    steps = max(50, int(seconds / (bench.block(50, saving=False)[0] / 50)))
    added: list[tuple[float, float, float]] = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        found = {saving: bench.block(steps, saving=saving) for saving in order}
        (wall, used, saves), (plain, plain_used, _) = found[True], found[False]
        added.append(((wall - plain) / saves, (used - plain_used) / saves, wall / plain - 1))
        print(
            f"{model}: {steps} steps, {saves} saves in {wall:.2f} s, none in {plain:.2f} s: wall {100 * (wall / plain - 1):+.1f} %, "
            f"processor {100 * (used / plain_used - 1):+.1f} %",
            flush=True,
        )
    wall, used = statistics.median(row[0] for row in added), statistics.median(row[1] for row in added)
    interval = max(DEFAULT, bench.saver.save_seconds / MAX_SAVE_SHARE)
    print(
        f"{model}: {bench.size() / 1e6:.1f} MB; a save holds the steps up for {1000 * bench.saver.save_seconds:.0f} ms; it adds "
        f"{1000 * wall:.0f} ms of wall clock and {1000 * used:.0f} ms of processor time (medians of {pairs} pairs): "
        f"at {every} {100 * wall / parse_duration(every):.2f} %, at the default interval of {interval:.0f} s "
        f"{100 * wall / interval:.3f} %, processor {100 * used / interval:.3f} %",
        flush=True,
    )
    bench.run.metrics.close()


def main() -> None:
    """Measure the networks that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["small-cnn", "resnet18"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--every", default="1s")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    for model in given.models:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measure(model, given.every, given.pairs, given.seconds, Path(folder))


if __name__ == "__main__":
    main()
