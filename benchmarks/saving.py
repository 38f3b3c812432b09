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
DEFAULT_INTERVAL = 300.0
"""Seconds between two saves by default."""


class SilentProgress:
    """Progress that shows nothing."""

    def report_step(self, *arguments: Any) -> None:
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
        self.records = StepRecords(self.run, self.saver, SilentProgress())  # type: ignore[arg-type]
        self.batches = self._iterate_batches()

    def _iterate_batches(self) -> Iterator[Any]:
        for epoch in itertools.count():
            self.run.counters.epoch, self.run.counters.batch = epoch, 0
            yield from self.run.batches.epoch(epoch)

    def time_block(self, steps: int, *, saving: bool) -> tuple[float, float, int]:
        """Wall seconds, processor seconds and saves of so many steps."""
        saves, wall_start, cpu_start = 0, time.perf_counter(), time.process_time()
        self.saver.saved_at = time.monotonic()
        for _ in range(steps):
            loop.train_step(self.run, self.records, next(self.batches))
            if saving and self.saver.is_due():
                self.saver.save_periodically()
                saves += 1
        self.saver.wait()
        return time.perf_counter() - wall_start, time.process_time() - cpu_start, saves

    def measure_size(self) -> int:
        """Bytes of the last checkpoint."""
        last = max((self.run.checkpoints).glob("step-*"), key=lambda path: path.stat().st_mtime)
        return sum(path.stat().st_size for path in last.iterdir())


def measure_model(model: str, every: str, pairs: int, seconds: float, folder: Path) -> None:
    """Measure pairs of blocks, print a row for each and the costs of a save."""
    bench = Bench(model, every, folder)
    bench.time_block(30, saving=False)
    steps = max(50, int(seconds / (bench.time_block(50, saving=False)[0] / 50)))
    added_by_save: list[tuple[float, float, float]] = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        blocks = {saving: bench.time_block(steps, saving=saving) for saving in order}
        (wall_seconds, cpu_seconds, saves), (plain_seconds, plain_cpu_seconds, _) = blocks[True], blocks[False]
        added_by_save.append(
            (
                (wall_seconds - plain_seconds) / saves,
                (cpu_seconds - plain_cpu_seconds) / saves,
                wall_seconds / plain_seconds - 1,
            )
        )
        print(
            f"{model}: {steps} steps, {saves} saves in {wall_seconds:.2f} s, none in {plain_seconds:.2f} s: "
            f"wall {100 * (wall_seconds / plain_seconds - 1):+.1f} %, "
            f"processor {100 * (cpu_seconds / plain_cpu_seconds - 1):+.1f} %",
            flush=True,
        )
    wall_seconds, cpu_seconds = (
        statistics.median(row[0] for row in added_by_save),
        statistics.median(row[1] for row in added_by_save),
    )
    interval = max(DEFAULT_INTERVAL, bench.saver.save_seconds / MAX_SAVE_SHARE)
    print(
        f"{model}: {bench.measure_size() / 1e6:.1f} MB; a save holds the steps up for "
        f"{1000 * bench.saver.save_seconds:.0f} ms; it adds {1000 * wall_seconds:.0f} ms of wall clock and "
        f"{1000 * cpu_seconds:.0f} ms of processor time (medians of {pairs} pairs): "
        f"at {every} {100 * wall_seconds / parse_duration(every):.2f} %, at the default interval of {interval:.0f} s "
        f"{100 * wall_seconds / interval:.3f} %, processor {100 * cpu_seconds / interval:.3f} %",
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
    options = parser.parse_args()
    for model in options.models:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure_model(model, options.every, options.pairs, options.seconds, Path(folder))


if __name__ == "__main__":
    main()
