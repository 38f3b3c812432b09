"""What `drivetrain tradeoffs` tries on a job: changes of what is learned that can save time, one at a time."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from drivetrain.job import Job, lower_is_better
from drivetrain.job.sweep import format_assignments
from drivetrain.job.train import Sgd
from drivetrain.report.record import read, summarize
from drivetrain.system.run_records import read_integer

Values = Mapping[str, JsonValue]
DEFAULT_WIDTHS = {"small-cnn": 32, "resnet18": 64, "resnet34": 64, "resnet50": 64}
SMALLER_NETWORKS = {"resnet50": "resnet34", "resnet34": "resnet18", "resnet18": "small-cnn"}
MIN_IMAGE_SIZE = 16
"""Pixels; below that a network of the images has nothing to pool."""
MIN_TEXT_LENGTH = 16
"""Tokens; a sentence."""
BASELINE = "as it is"


@dataclass(frozen=True)
class Variant:
    """The job with other values of some keys."""

    name: str
    values: Values = field(default_factory=dict)

    def describe(self) -> str:
        """The keys with their values, as a job file has them."""
        return ", ".join(f"{key}: {_shorten(value)}" for key, value in self.values.items())

    def assignments(self) -> list[str]:
        """The values as `--set` takes them."""
        return format_assignments(self.values)


def list_variants(
    job: Job, preprocessing: Mapping[str, Any], precision: str, *, is_solved: bool = False
) -> list[Variant]:
    """The variants of a job.

    Args:
        job: to vary.
        preprocessing: of a finished run of the job, with the sizes that it has chosen.
        precision: number format of that run.
        is_solved: whether its heads were solved, so that epochs, batches and rates change nothing.
    """
    variants = [] if is_solved else list(_vary_training(job, precision))
    vary_task = {"text": _vary_text, "image": _vary_images, "series": _vary_series, "tabular": _vary_table}
    if vary := vary_task.get(job.task.partition("-")[0]):
        variants += vary(job, preprocessing)
    return variants


def _vary_training(job: Job, precision: str) -> Iterator[Variant]:
    train = job.train
    if train.epochs > 1:
        yield Variant("half the epochs", {"train.epochs": train.epochs // 2})
    if train.epochs > 3 and train.early_stopping is None:
        stopping: JsonValue = {"metric": job.best(), "patience": max(2, train.epochs // 5)}
        yield Variant("early stopping", {"train.early_stopping": stopping})
    if isinstance(train.batch_size, int):
        for factor, name in ((2, "twice the batch"), (4, "four times the batch")):
            # Linear for SGD (Goyal et al. 2017); the root for Adam, whose steps have a fixed size (Malladi et al. 2022).
            rate_factor = factor if isinstance(train.optimizer, Sgd) else math.sqrt(factor)
            rate = float(f"{train.optimizer.lr * rate_factor:.3g}")
            yield Variant(name, {"train.batch_size": train.batch_size * factor, "train.optimizer.lr": rate})
    if precision == "fp32":
        yield Variant("bf16", {"optimize.precision": "bf16"})


def _vary_text(job: Any, preprocessing: Mapping[str, Any]) -> Iterator[Variant]:
    length = preprocessing.get("max_length")
    for part, name in ((2, "half the text length"), (4, "a quarter of the text length")):
        if isinstance(length, int) and length // part >= MIN_TEXT_LENGTH:
            yield Variant(name, {"data.max_length": length // part})
    model = job.model
    if getattr(model, "source", "") == "transformers":
        yield from _vary_frozen(model)
    elif getattr(model, "name", "") == "encoder":
        if model.layers > 1:
            yield Variant("half the layers", {"model.layers": model.layers // 2})
        if model.width // 2 >= 8 and model.width // 2 % model.heads == 0:
            yield Variant("half the width", {"model.width": model.width // 2})
        yield Variant("a linear model", {"model": "linear"})


def _vary_images(job: Any, preprocessing: Mapping[str, Any]) -> Iterator[Variant]:
    size = preprocessing.get("image_size")
    for share, name in ((0.75, "three quarters of the image size"), (0.5, "half the image size")):
        if isinstance(size, int) and size * share >= MIN_IMAGE_SIZE:
            yield Variant(name, {"data.image_size": int(size * share)})
    if job.data.augment != type(job.data.augment)():
        yield Variant("no augmentation", {"data.augment": {}})
    model = job.model
    if getattr(model, "pretrained", False) or getattr(model, "source", "") == "transformers":
        yield from _vary_frozen(model)
    elif model.name in DEFAULT_WIDTHS:
        yield Variant("half the width", {"model.width": (model.width or DEFAULT_WIDTHS[model.name]) // 2})
        if smaller := SMALLER_NETWORKS.get(model.name):
            yield Variant("a smaller network", {"model": smaller})


def _vary_frozen(model: Any) -> Iterator[Variant]:
    if not model.freeze.any:
        yield Variant("a frozen body", {"model.freeze.body": True})


def _vary_series(job: Any, preprocessing: Mapping[str, Any]) -> Iterator[Variant]:
    if job.data.augment != type(job.data.augment)():
        yield Variant("no augmentation", {"data.augment": {}})
    model = job.model
    if getattr(model, "name", "") != "cnn-lstm":
        return
    yield Variant("half the LSTM", {"model.lstm_hidden": max(1, model.lstm_hidden // 2)})
    yield Variant("half the channels", {"model.cnn_channels": [max(1, count // 2) for count in model.cnn_channels]})
    if model.lstm_layers > 1:
        yield Variant("one LSTM layer", {"model.lstm_layers": 1})
    if model.bidirectional:
        yield Variant("an LSTM of one direction", {"model.bidirectional": False})


def _vary_table(job: Any, preprocessing: Mapping[str, Any]) -> Iterator[Variant]:
    if getattr(job.model, "name", "") in ("mlp", "tabm"):
        yield Variant("half the units", {"model.hidden": [max(1, count // 2) for count in job.model.hidden]})
        if job.model.name == "tabm" and job.model.members > 2:
            yield Variant("half the members", {"model.members": job.model.members // 2})
        if len(job.model.hidden) > 1:
            yield Variant("one hidden layer", {"model.hidden": list(job.model.hidden[:1])})
        yield Variant("a linear model", {"model": "linear"})


def _shorten(value: JsonValue) -> str:
    """A value as a job file has it, without the quotes of JSON."""
    return json.dumps(value, ensure_ascii=False).replace('"', "")


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
