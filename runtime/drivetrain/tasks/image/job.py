"""Image tasks: one of several classes, several labels at once, or numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from drivetrain.errors import Problem
from drivetrain.job.data import FileData, FileLabels, ImageClassificationData, ImageData
from drivetrain.job.formatting import format_value
from drivetrain.job.job import CLASS_METRICS, LABEL_METRICS, NUMBER_METRICS, Job
from drivetrain.job.model import RESNET_WEIGHTS, ConvolutionalNetwork, ImageModel, ImageNetwork, ImageTimm


def find_idle_stem(job: Job, model: object) -> Iterator[Problem]:
    """Yield `model.stem` of a network without a stem."""
    if isinstance(model, ConvolutionalNetwork) and model.name == "small-cnn" and model.stem != "auto":
        yield job.problem(
            ("model", "stem"),
            f"is {model.stem}, and small-cnn has no stem",
            "for resnet18, resnet34 and resnet50",
            "remove it, or choose one of these networks",
        )


class FileJob(Job):
    """Keys of tasks whose samples are files."""

    data: FileData = Field(description="the training and validation data")


class ImageJob(FileJob):
    """Keys that both image tasks share."""

    data: ImageData = Field(description="the training and validation data")
    model: ImageModel = Field(ImageNetwork(name="small-cnn"), description="the network")

    def problems(self) -> Iterator[Problem]:
        """Yield settings that contradict each other, such as settings of a network and its pretrained weights."""
        yield from self._check_idle_keys()
        augment = self.data.augment
        if augment.views and not augment.of_single_images:
            yield self.problem(
                ("data", "augment", "views"),
                f"is {augment.views}, and no augmentation changes single images",
                "with flip, crop_padding, resized_crop, randaugment, color_jitter or erasing",
                "add one of them, or remove it",
            )
        model = self.model
        if not isinstance(model, ImageNetwork | ImageTimm):
            return
        key = ("model", "pretrained")
        if model.pretrained and model.weights:
            yield self.problem(key, "is set, and weights too", "one of them", "remove one")
        if not model.pretrained and model.revision:
            yield self.problem(
                ("model", "revision"), "chooses among pretrained weights", "with pretrained: true", "remove it"
            )
        if model.pretrained is True and isinstance(model, ImageTimm) and "." not in model.name:
            yield self.problem(
                key,
                f"is true, and {model.name} has no tag that selects its weights",
                f"timm.list_pretrained('{model.name}*') lists them",
                f"write the name with its tag, such as {model.name}.a1_in1k",
            )
        if model.pretrained and isinstance(model, ImageNetwork):
            yield from self._check_resnet_weights(model)

    def _check_resnet_weights(self, model: ImageNetwork) -> Iterator[Problem]:
        """Yield settings that contradict the pretrained weights of a built-in ResNet."""
        if model.name not in RESNET_WEIGHTS:
            description, names = f"there are no pretrained weights for {model.name}", ", ".join(RESNET_WEIGHTS)
            yield self.problem(("model", "pretrained"), description, f"for {names}", "remove it, or use source: timm")
        if model.stem == "small":
            yield self.problem(
                ("model", "stem"), "is small, and the pretrained weights have the large stem", "large", "remove it"
            )
        if model.width not in (None, 64):
            yield self.problem(
                ("model", "width"), f"is {model.width}, and the pretrained weights have 64", "64", "remove it"
            )

    def _check_idle_keys(self) -> Iterator[Problem]:
        """Yield keys that would have no effect."""
        augment = self.data.augment
        yield from find_idle_stem(self, self.model)
        if augment.views and (augment.mixup or augment.cutmix):
            mixing_key = "mixup" if augment.mixup else "cutmix"
            yield self.problem(
                ("data", "augment", "views"),
                f"is {augment.views}, and data.augment.{mixing_key} changes the inputs in every step",
                "without mixup and cutmix: images that repeat, so that outputs of frozen layers can be cached",
                "remove one of the two",
            )


class FileClassificationJob(FileJob):
    """Classification of files: one of several classes, or several independent labels (multi-label)."""

    METRICS = CLASS_METRICS
    BEST = "accuracy"

    data: FileLabels = Field(description="the training and validation data")

    def losses(self) -> tuple[str, ...]:
        """Return the losses that fit the number of labels of a file."""
        return ("bce",) if self.data.several else ("cross-entropy", "focal")

    def scores(self) -> tuple[str, ...]:
        """Return the metrics of labels if a file can have several, else the metrics of classes."""
        return LABEL_METRICS if self.data.several else self.METRICS

    def best(self) -> str:
        """Return macro F1 for several labels, because all labels of a file are rarely right in the first epochs."""
        return "validation/f1" if self.data.several and not self.checkpoint.best else super().best()

    def problems(self) -> Iterator[Problem]:
        """Yield also keys of labels that contradict each other."""
        yield from super().problems()
        data = self.data
        if data.multi_label is False and len(data.label_column) > 1:
            yield self.problem(
                ("data", "multi_label"),
                f"is false, and data.label_column names {len(data.label_column)} columns",
                "several columns of 0 and 1 are independent labels",
                "remove it, or name one column",
            )
        if data.label_separator != "auto" and (not data.multi_label or len(data.label_column) > 1):
            yield self.problem(
                ("data", "label_separator"),
                f"is {format_value(data.label_separator)}",
                "for one column with all labels of an image",
                "add `multi_label: true`, and name one label_column; or remove it",
            )


class ImageClassificationJob(FileClassificationJob, ImageJob):
    """Classification of images: one of several classes, or several independent labels (multi-label)."""

    task: Literal["image-classification"]
    data: ImageClassificationData = Field(description="the training and validation data")


class ImageRegressionJob(ImageJob):
    """Regression on images, with one or several numbers."""

    PREDICTS_NUMBERS = True
    METRICS = NUMBER_METRICS
    BEST = "rmse"
    LOSSES = ("mse", "huber")

    task: Literal["image-regression"]

    def number_columns(self) -> tuple[str, ...]:
        """Return the label columns."""
        return self.data.label_column

    def problems(self) -> Iterator[Problem]:
        """Yield also augmentation that is only for classes."""
        yield from super().problems()
        if self.data.augment.cutmix:
            yield self.problem(
                ("data", "augment", "cutmix"),
                "mixes labels by area",
                "for classes and labels: the number of a patch is not a share of the number of the image",
                "remove it, or use mixup",
            )
