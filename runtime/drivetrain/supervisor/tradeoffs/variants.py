"""What `drivetrain tradeoffs` tries on a job: changes of what is learned that can save time, one at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from drivetrain.job import Job
from drivetrain.job.sweep import format_assignments
from drivetrain.job.train import Sgd

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


def list_variants(job: Job, preprocessing: Mapping[str, Any], precision: str) -> list[Variant]:
    """The variants of a job.

    Args:
        job: to vary.
        preprocessing: of a finished run of the job, with the sizes that it has chosen.
        precision: number format of that run.
    """
    variants = list(_vary_training(job, precision))
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
