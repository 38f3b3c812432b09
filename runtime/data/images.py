"""Images: the data of an image-classification job, from class folders, a manifest or an .npz file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime import draws
from runtime.data import arrays, bad, geometry, labels, stratify
from runtime.data.dataset import Dataset, Head, Inputs, Targets
from runtime.data.preparer import Preparer
from runtime.draws import Ids
from runtime.errors import DataError
from runtime.job.job import ImageJob

MEASURED = 2000
"""Training images that mean and deviation are taken from."""

Images = arrays.Arrays


@dataclass
class Source:
    """All images of one path, the label of each, and which rows can be used."""

    key: str
    images: Images
    labels: list[str]
    rows: Ids
    notes: list[str]

    def used(self) -> list[str]:
        """Labels of the usable rows."""
        return [self.labels[row] for row in self.rows.tolist()]


class ImageSplit:
    """Training or validation images: rows of a source."""

    def __init__(self, images: Images, rows: Ids, classes: npt.NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows
        self.targets: Targets = {"": torch.from_numpy(classes)}

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Pixels of these samples: one tensor (N, C, S, S), uint8 or float32."""
        return (self.images.gather(self.rows[ids]),)

    def title(self, index: int) -> str:
        """Path or row of one image."""
        return self.images.title(int(self.rows[index]))


def load(job: ImageJob) -> Dataset:
    """Read and check the images of a job.

    Raises:
        DataError: if they cannot be used.
    """
    train = _read(job, "data.train", job.data.train)
    classes = _classes(train)
    size, channels, notes = _geometry(job, train.images)
    train.images = train.images.fitted(size, channels)
    parts, more = _parts(job, train, classes)
    preparer = _preparer(job, parts[0], classes)
    counts = f"{len(parts[0]):,} training and {len(parts[1]):,} validation images, {len(classes)} classes"
    return Dataset(
        *parts, heads={"": Head("", classes)}, preprocessing=preparer.to_json(), prepare=preparer,
        decoded=isinstance(train.images, arrays.Arrays), notes=[counts, *train.notes, *notes, *more],
    )  # fmt: skip


def _read(job: ImageJob, key: str, path: str) -> Source:
    place = job.resolve(path)
    if place.suffix.lower() != ".npz":
        raise DataError(f"{key}: {place} is of no known kind", "a folder, .csv, .parquet or .npz", "convert it")
    images, names, broken, notes = arrays.read(place, key)
    notes += bad.check(broken, len(images), job.data.bad_samples, key)
    unusable = {one.title for one in broken}
    rows = np.array([row for row in range(len(images)) if images.title(row) not in unusable], np.int64)
    return Source(key, images, names, rows, notes)


def _classes(train: Source) -> tuple[str, ...]:
    classes = labels.class_names(train.used())
    lost = sorted(set(train.labels) - set(classes))
    if lost:
        raise DataError(f"{train.key}: no image can be used of the classes {labels.listed(lost)}",
                        "at least one image for each class", "repair these images, or remove the class")  # fmt: skip
    if len(classes) < 2:
        raise DataError(f"{train.key}: {len(train.rows):,} images of {len(classes)} class: {labels.listed(classes)}",
                        "two classes or more", "add another class")  # fmt: skip
    alone = sorted(name for name, count in Counter(train.used()).items() if count == 1)
    if alone:
        train.notes.append(f"classes with one image, which stays in training: {labels.listed(alone)}")
    return classes


def _geometry(job: ImageJob, images: Images) -> tuple[int, int, list[str]]:
    exact = isinstance(images, arrays.Arrays)
    size, why = geometry.choose_size(job.data.image_size, images.short_sides(), exact)
    channels, because = geometry.choose_channels(job.data.channels, images.grey())
    return size, channels, [f"image_size {size}: {why}", f"channels {channels}: {because}"]


def _parts(job: ImageJob, train: Source, classes: Sequence[str]) -> tuple[tuple[ImageSplit, ImageSplit], list[str]]:
    """Training and validation samples, and notes."""
    targets = labels.indices(train.used(), classes, train.key)
    if isinstance(job.data.validation, str):
        held = _read(job, "data.validation", job.data.validation)
        known = labels.indices(held.used(), classes, held.key)
        held.images = held.images.fitted(*train.images.gather(train.rows[:1]).shape[-1:-4:-2])
        return (ImageSplit(train.images, train.rows, targets), ImageSplit(held.images, held.rows, known)), held.notes
    kept, held_out = stratify.held_out(targets, job.data.validation, job.train.seed)
    parts = [ImageSplit(train.images, train.rows[side], targets[side]) for side in (kept, held_out)]
    return (parts[0], parts[1]), []


def _preparer(job: ImageJob, train: ImageSplit, classes: tuple[str, ...]) -> Preparer:
    """Statistics of the training images alone."""
    chosen = draws.generator(job.train.seed, "statistics").permutation(len(train))[:MEASURED]
    (raw,) = train.gather(np.sort(chosen).astype(np.int64))
    low, high = _range(raw)
    pixels = (raw.to(torch.float64) - low) / (high - low)
    mean, std = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3), correction=0)
    return Preparer(
        image_size=raw.shape[-1], channels=raw.shape[1], classes=classes, dtype=str(raw.dtype).removeprefix("torch."),
        low=low, high=high, mean=tuple(mean.tolist()), std=tuple(std.clamp_min(1e-3).tolist()),
    )  # fmt: skip


def _range(raw: Tensor) -> tuple[float, float]:
    """Raw values that become 0 and 1: of the type, or where floats go beyond 0 and 1, the smallest and largest."""
    if raw.dtype == torch.uint8:
        return 0.0, 255.0
    low, high = float(raw.min()), float(raw.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 or low == high else (low, high)
