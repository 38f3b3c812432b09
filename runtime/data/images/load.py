"""Loads the data of an image-classification job from class folders, a manifest or an .npz file."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.data import labels, stateless_random, stratify
from runtime.data.dataset import Dataset, Head, InputRecord, Inputs, Targets
from runtime.data.formats import csv_dialect
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.images import decoded_cache, geometry, pixel_scale, source
from runtime.data.images.augment import Augment
from runtime.data.images.decoded_cache import Decoded
from runtime.data.images.image_files import Files
from runtime.data.images.preprocess import ImagePreprocessing, channel_statistics, from_preprocessing, pixel_range
from runtime.data.images.resize import Resize
from runtime.data.images.source import Images, ImageSource
from runtime.data.stateless_random import Ids
from runtime.errors import DataError
from runtime.hardware.disk_space import DECODED
from runtime.hardware.facts import Storage
from runtime.job.data import Data
from runtime.job.job import ImageJob
from runtime.pretrained import image_input
from runtime.pretrained.expected_input import Expected

MEASURED = 2000
"""Number of training images from which mean and standard deviation are computed."""


class ImageSplit:
    """Images of a source: for training, for validation, or new ones, which may have no labels."""

    def __init__(self, images: Images | Decoded, rows: Ids, classes: npt.NDArray[np.int64] | None) -> None:
        self.images, self.rows = images, rows
        self.targets: Targets = {} if classes is None else {"": torch.from_numpy(classes)}

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Pixels of these samples: one tensor (N, C, S, S), uint8 or float32."""
        return (self.images.gather(self.rows[ids]),)

    def title(self, index: int) -> str:
        """Path or row of one image."""
        return self.images.title(int(self.rows[index]))


def load(job: ImageJob, settled: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the images of a job; preprocessing is taken from `settled` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.declared(), {})
    train = source.read(job.resolve(job.data.train), job.data, "data.train", files)
    classes = settled.heads[""].classes if settled and settled.same_data else _classes(train)
    wanted = image_input.expected(job)
    size, channels, notes = geometry.chosen(job, train, wanted)
    if settled:
        size, channels = geometry.of_earlier(job, settled)
        notes = [f"image_size {size}, channels {channels}: as in the earlier run"] if not settled.same_data else notes
    shape, why = geometry.resized(job, settled, wanted)
    notes += [*why, *geometry.oblong(train, shape.fit)]
    train.fit(size, channels, shape)
    targets = labels.indices(train.used(), classes, train.key)
    read = [(train.key, train.images)]
    if isinstance(job.data.validation, str):
        held = source.read(job.resolve(job.data.validation), job.data, "data.validation", files)
        held.fit(size, channels, shape)
        parts = _apart(train, targets, held, classes)
        notes += [*held.notes, *_shared(train, held)]
        read.append((held.key, held.images))
    else:
        parts = _divided(train, targets, job.data, job.train.seed)
    preparer, more = _preparer(job, parts[0], classes, wanted, shape)
    if settled:
        known = from_preprocessing(dict(settled.preprocessing))
        if not settled.same_data:
            known, more = pixel_scale.known(job, known, preparer, parts[0].gather(np.arange(1))[0].dtype), []
        augment = Augment(job.data.augment, job.train.seed, known.mean)
        preparer = replace(known, augment=augment, classes=classes, image_size=size)
    counts = f"{len(parts[0]):,} training and {len(parts[1]):,} validation images, {len(classes)} classes"
    columns = {"path_column": job.data.path_column, "label_column": job.data.label_column}
    return Dataset(
        *parts,
        heads={"": Head("", classes)},
        preprocessing=preparer.to_json() | columns,
        prepare=preparer,
        decoded=not isinstance(train.images, Files),
        notes=[counts, *train.notes, *notes, *more],
        files={key: images.names for key, images in read if isinstance(images, Files)},
    )


def keep_decoded(dataset: Dataset, storage: Storage, share: int) -> Dataset:
    """The dataset with decoded image files cached; this job may use 1/`share` of the cache's space.

    Raises:
        StorageError: if the cache cannot be written.
    """
    folder, made = Path(storage.cache) / DECODED, dict[int, Decoded]()

    def split(given: Any) -> ImageSplit:
        twin: ImageSplit = copy.copy(given)
        if isinstance(given.images, Files):
            if id(given.images) not in made:
                made[id(given.images)] = decoded_cache.kept(given.images, folder, (storage.cache_room or 0) // share)
            twin.images = made[id(given.images)]
        return twin

    return replace(dataset, train=split(dataset.train), validation=split(dataset.validation))


def _classes(train: ImageSource) -> tuple[str, ...]:
    used = Counter(train.used())
    classes = labels.class_names(used)
    lost = sorted(set(train.labels) - set(used))
    if lost:
        raise DataError(
            f"{train.key}: no image can be used of the classes {labels.listed(lost)}",
            "at least one image for each class",
            "repair these images, or remove the class",
        )
    if len(classes) < 2:
        raise DataError(
            f"{train.key}: {len(train.rows):,} images of {len(classes)} class: {labels.listed(classes)}",
            "two classes or more",
            "add another class",
        )
    return classes


Parts = tuple[ImageSplit, ImageSplit]


def _divided(train: ImageSource, targets: npt.NDArray[np.int64], data: Data, seed: int) -> Parts:
    """Training and validation samples from one source."""
    counts = np.bincount(targets)
    if (counts == 1).any():
        alone = sorted({label for label, target in zip(train.used(), targets, strict=True) if counts[target] == 1})
        train.notes.append(f"classes with a single image, which is used for training: {labels.listed(alone)}")
    kept, held = stratify.divide(targets, data, seed)
    if not len(held):
        raise DataError(
            f"{train.key}: every class has only one image, so none is left for validation",
            "two images of a class or more",
            "add images, or set data.validation to a path",
        )
    return (
        ImageSplit(train.images, train.rows[kept], targets[kept]),
        ImageSplit(train.images, train.rows[held], targets[held]),
    )


def _apart(train: ImageSource, targets: npt.NDArray[np.int64], held: ImageSource, classes: tuple[str, ...]) -> Parts:
    """Training and validation samples from two separate sources."""
    known = labels.indices(held.used(), classes, held.key)
    seen, own = (part.images.gather(part.rows[:1]).dtype for part in (train, held))
    if seen == torch.uint8 and own != torch.uint8:
        raise DataError(
            f"{held.key}: pixels are {own}, but those of data.train are {seen}".replace("torch.", ""),
            "the same type for both",
            "write both files with the same pixel type",
        )
    return ImageSplit(train.images, train.rows, targets), ImageSplit(held.images, held.rows, known)


def _shared(train: ImageSource, held: ImageSource) -> list[str]:
    """A note on images that are in both splits, which makes validation scores too good."""
    if not (isinstance(train.images, Files) and isinstance(held.images, Files)):
        return []
    both = train.images.whole_paths() & held.images.whole_paths()
    return [f"{len(both):,} validation images are also in the training data: {labels.listed(sorted(both), 3)}"] * bool(
        both
    )


def _preparer(
    job: ImageJob, train: ImageSplit, classes: tuple[str, ...], wanted: Expected | None, shape: Resize
) -> tuple[ImagePreprocessing, list[str]]:
    """The preprocessing, with statistics of the training images or those a pretrained network expects, and notes."""
    chosen = stateless_random.generator(job.train.seed, "statistics").permutation(len(train))[:MEASURED]
    (raw,) = train.gather(np.sort(chosen).astype(np.int64))
    low, high = pixel_range(raw)
    mean, std = channel_statistics(raw, low, high)
    if wanted is not None and wanted.mean and wanted.std:
        mean, std = list(wanted.mean), list(wanted.std)
    notes = (
        [f"pixel values from {low:g} to {high:g} are scaled to 0 to 1"] if (low, high) not in ((0, 1), (0, 255)) else []
    )
    if 0 in std:
        notes.append("one channel is constant; it is centered but not scaled")
    if wanted is not None:
        where = wanted.source if wanted.mean else "the training images, for lack of preprocessor_config.json"
        notes.append(f"mean {_listed(mean)} and deviation {_listed(std)} are those of {where}")
    preparer = ImagePreprocessing(
        image_size=raw.shape[-1],
        channels=raw.shape[1],
        classes=classes,
        low=low,
        high=high,
        mean=tuple(mean),
        std=tuple(value or 1.0 for value in std),
        augment=Augment(job.data.augment, job.train.seed, tuple(mean)),
        resize=shape,
    )
    return preparer, notes


def _listed(values: list[float]) -> str:
    return "/".join(f"{value:.3g}" for value in values)
