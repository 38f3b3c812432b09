"""What the trainings of `drivetrain tradeoffs` have measured of a variant, and which variants are worth it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.job import lower_is_better
from drivetrain.report.record import read
from drivetrain.report.summary import summarize
from drivetrain.supervisor.tradeoffs.variants import Variant
from drivetrain.system.run_records import read_integer

EPOCH_PHASES = ("train", "input", "forward", "optimizer", "evaluate")
"""Phases of a run whose seconds grow with the epochs."""


@dataclass(frozen=True)
class Training:
    """A finished training of a variant for a share of its epochs."""

    share: float
    seed: int
    value: float
    """Of the metric."""
    epoch_seconds: float
    other_seconds: float
    """Start and end of the run."""
    trained_share: float
    """Of the epochs that it was to train: less than 1 if it stopped early."""
    peak_bytes: float


@dataclass
class Measured:
    """A variant with its trainings, or the reason why it has none."""

    variant: Variant
    epochs: int
    """Of its full training."""
    job_epochs: int
    """Of the full training of the job as it is."""
    least_epochs: int = 2
    """Of any training of the job as it is, if it has so many: with 1, half of its epochs would be the same training."""
    trainings: list[Training] = field(default_factory=list)
    failure: str = ""

    @property
    def longest(self) -> Training | None:
        """The training of the largest share, of several seeds the first."""
        return max(self.trainings, key=lambda training: training.share, default=None)

    def forecast_seconds(self, share: float, other_seconds: float) -> float:
        """Seconds of a training for a share of the epochs, from command to end.

        Args:
            share: of the epochs; a training that stops early is taken to stop after the same share of any number of epochs.
            other_seconds: of start and end.
        """
        longest = self.longest
        assert longest is not None, "it was trained"
        epochs = self.count_epochs(share) * longest.trained_share
        return other_seconds + epochs * longest.epoch_seconds

    def count_epochs(self, share: float) -> int:
        """The epochs of a training of this share of all."""
        job_epochs = max(min(self.least_epochs, self.job_epochs), round(share * self.job_epochs))
        return max(1, round(job_epochs * self.epochs / self.job_epochs))


def read_training(run: Path, metric: str, share: float, seed: int, epochs: int) -> Training | None:
    """What a finished run tells; None if its metric is no number.

    Args:
        run: its folder.
        metric: that decides.
        share: of the epochs of the variant.
        seed: of the run.
        epochs: that the run was to train.
    """
    record = read(run)
    summary = summarize(record)
    value = summary.best.metrics.get(metric) if summary.best else None
    if value is None or summary.seconds is None or not summary.epochs:
        return None
    seconds = sum(summary.phases.get(phase, 0.0) for phase in EPOCH_PHASES)
    other_seconds = max(0.0, summary.seconds - seconds)
    if (attempts := read_integer(record.state, "attempts") or 1) > 1:
        # The phases are those of the last attempt, the seconds those of all.
        other_seconds = sum(value for phase, value in summary.phases.items() if phase not in EPOCH_PHASES)
        seconds = max(0.0, summary.seconds - attempts * other_seconds)
    peak_bytes = summary.peak_memory or 0.0
    return Training(
        share, seed, value, seconds / summary.epochs, other_seconds, min(1.0, summary.epochs / epochs), peak_bytes
    )


def measure_other_seconds(rows: Iterable[Measured]) -> float:
    """Seconds of start and end of a training: the median, since they depend little on the variant."""
    return statistics.median(training.other_seconds for row in rows for training in row.trainings)


def compare(measured: Measured, baseline: Measured, metric: str) -> tuple[float, float, int] | None:
    """By how much a variant is better than the job as it is; below 0 if it is worse.

    Returns:
        Mean and standard deviation of the difference over the seeds that both were trained with for the largest share of
        epochs, and the number of seeds; None if there is none.
    """
    if measured.longest is None:
        return None
    share, sign = measured.longest.share, -1.0 if lower_is_better(metric) else 1.0
    references = {training.seed: training.value for training in baseline.trainings if training.share == share}
    differences = [
        sign * (training.value - references[training.seed])
        for training in measured.trainings
        if training.share == share and training.seed in references
    ]
    if not differences:
        return None
    deviation = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return statistics.fmean(differences), deviation, len(differences)


def find_front(rows: Sequence[Measured], baseline: Measured, metric: str) -> list[Measured]:
    """The variants that no other one beats in both time and metric (Pareto front), the fastest first."""
    front: list[Measured] = []
    best_difference = float("-inf")
    for _, difference, row in sorted(_list_points(rows, baseline, metric), key=lambda point: (point[0], -point[1])):
        if difference > best_difference:
            best_difference = difference
            front.append(row)
    return front


def choose_survivors(rows: Sequence[Measured], baseline: Measured, metric: str, count: int) -> list[Measured]:
    """The variants to train longer: of those that are faster than the job as it is, or better, the best ones."""
    ((base_seconds, _, _),) = _list_points([baseline], baseline, metric)
    points = _list_points([row for row in rows if not row.failure], baseline, metric)
    useful = [(difference, row) for seconds, difference, row in points if seconds < base_seconds or difference > 0]
    useful.sort(key=lambda pair: pair[0], reverse=True)
    return [row for _, row in useful[:count]]


def _list_points(rows: Sequence[Measured], baseline: Measured, metric: str) -> list[tuple[float, float, Measured]]:
    """Seconds of the whole training, without start and end, and difference of the metric, of the rows that were compared."""
    differences = [(compare(row, baseline, metric), row) for row in rows]
    return [
        (row.forecast_seconds(1.0, 0.0), difference[0], row)
        for difference, row in differences
        if difference is not None
    ]
