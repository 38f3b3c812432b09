"""Loads the data of an image job from class folders, a manifest or an .npz file."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.data import copies, groups, stateless_random
from runtime.data.dataset import Dataset, Head, InputRecord
from runtime.data.formats import csv_dialect
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.images import decoded_cache, geometry, label_form, pixel_scale, source
from runtime.data.images.augment import Augment
from runtime.data.images.decoded_cache import Decoded
from runtime.data.images.image_files import Files
from runtime.data.images.image_split import ImageSplit
from runtime.data.images.image_targets import ClassTargets
from runtime.data.images.label_form import LabelForm
from runtime.data.images.preprocess import ImagePreprocessing, channel_statistics, from_preprocessing, pixel_range
from runtime.data.images.resize import Resize
from runtime.data.images.source import ImageSource
from runtime.data.images.value_range import BYTES, SHARES
from runtime.data.stateless_random import Ids
from runtime.errors import DataError
from runtime.hardware.disk_space import DECODED
from runtime.hardware.facts import Storage
from runtime.job.data import ImageData
from runtime.job.images import ImageJob
from runtime.pretrained import image_input
from runtime.pretrained.expected_input import Expected

MEASURED = 2000
"""Number of training images from which mean and standard deviation are computed."""


def load(job: ImageJob, settled: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the images of a job; preprocessing is taken from `settled` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.declared(), {}, job.data.missing)
    form = label_form.of_job(job.data, ask=not (settled and settled.same_data))
    train = source.read(job.resolve(job.data.train), job.data, form, "data.train", files)
    train.targets.check(train.rows, train.key)
    wanted = image_input.expected(job)
    size, channels, shape, notes = geometry.decided(job, train, settled, wanted)
    read = [(train.key, train.images)]
    own: ImageSource | None = None
    kept, marks = train.rows, dict[str, int]()
    notes += _contradictions(train)
    if isinstance(job.data.validation, str):
        own = source.read(job.resolve(job.data.validation), job.data, _found(form, train), "data.validation", files)
        read.append((own.key, own.images))
    else:
        division = copies.Division(train.images.contents[train.rows], "images", settled)
        kept, held = _divided(train, job.data, job.train.seed, division)
        marks = division.stored()

    if settled:
        before = from_preprocessing(dict(settled.preprocessing))
        train.images, shape = pixel_scale.read_as_trained(
            train.images, kept, before, train.key, starts_from=not settled.same_data
        )
    else:
        shape, decoding_notes = pixel_scale.measure_training_files(train.images, kept, shape, train.key)
        notes += decoding_notes
    train.fit(size, channels, shape)

    def computed() -> Head:
        return train.targets.head(train.rows, kept, train.key)

    head = settled.head("", computed) if settled else computed()
    train_split = _split(train, kept, head)
    found, more = preparer(job, train_split, head.classes, wanted, shape)
    bytes_too = pixel_scale.takes_bytes(train.images, kept, (found.low, found.high))
    found = replace(found, takes_bytes=bytes_too)
    if settled:
        found, more = _as_before(job, settled, train_split, replace(found, image_size=size), more)
    if own:
        own.images, validation_shape = pixel_scale.read_as_trained(own.images, own.rows, found, own.key)
        own.fit(size, channels, validation_shape)
        parts = train_split, _split(own, own.rows, head)
        notes += [f"validation: {note}" for note in pixel_scale.check_some(parts[1], found, own.key)]
        notes += [*own.notes, *_shared(train, own)]
    else:
        parts = train_split, _split(train, held, head)
    counts = f"{len(parts[0]):,} training and {len(parts[1]):,} validation images, {head.counted}"
    columns = {"path_column": job.data.path_column, **form.to_json(train.separator)}
    return Dataset(
        *parts,
        heads={"": head},
        preprocessing=found.to_json() | columns | marks,
        prepare=found,
        views=job.data.augment.views or 0,
        decoded=not isinstance(train.images, Files),
        notes=[counts, *train.notes, *notes, *more],
        files={key: images.names for key, images in read if isinstance(images, Files) and not images.cells},
    )


def _as_before(
    job: ImageJob, settled: InputRecord, train: ImageSplit, found: ImagePreprocessing, notes: list[str]
) -> tuple[ImagePreprocessing, list[str]]:
    """The stored preprocessing with the classes and the size of `found`, which is that of this data, and its notes."""
    known = from_preprocessing(dict(settled.preprocessing))
    if not settled.same_data:
        known, notes = pixel_scale.known(job, known, found, train.gather(np.arange(1))[0].dtype), []
        known = replace(known, resize=found.resize)
    augment = Augment(job.data.augment, job.train.seed, known.mean)
    return replace(known, augment=augment, classes=found.classes, image_size=found.image_size), notes


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


Parts = tuple[ImageSplit, ImageSplit]


def _found(form: LabelForm, train: ImageSource) -> LabelForm:
    """The form for further files: with the separator of the training data."""
    return replace(form, separator=train.separator or form.separator, groups="")


def _divided(train: ImageSource, data: ImageData, seed: int, division: copies.Division) -> tuple[Ids, Ids]:
    """Images for training and for validation from one source."""
    strata = train.targets.strata(train.rows)
    single = isinstance(train.targets, ClassTargets)
    if train.groups:
        train.notes += [] if single else train.targets.notes(train.rows)
        found = division.whole(groups.numbered([train.groups[row] for row in train.rows.tolist()]))
        kept, held = groups.divide(strata, found, data, seed, train.key)
        lost = held[np.isin(strata[held], strata[kept], invert=True)] if single else held[:0]
        names = sorted(set(train.targets.taken(train.rows[lost]))) if isinstance(train.targets, ClassTargets) else []
        train.notes += [groups.note(data.groups or "", found, kept, held, names), *division.notes(kept, held)]
        return train.rows[kept], train.rows[held]
    train.notes += train.targets.notes(train.rows)
    kept, held = division.divide(strata, data, seed)
    train.notes += division.notes(kept, held)
    if not len(held):
        raise DataError(
            f"{train.key}: every class has only one image, so none is left for validation",
            "two images of a class or more",
            "add images, or set data.validation to a path",
        )
    return train.rows[kept], train.rows[held]


def _split(images: ImageSource, rows: Ids, head: Head) -> ImageSplit:
    return ImageSplit(images.images, rows, images.targets.tensor(rows, head, images.key))


def _shared(train: ImageSource, held: ImageSource) -> list[str]:
    """A note on images that are in both splits, which makes validation scores too good."""
    training, other = (part.images.contents[part.rows] for part in (train, held))
    return copies.shared(training, other, lambda index: held.images.title(held.rows[index]), "validation images")


def _contradictions(train: ImageSource) -> list[str]:
    """A note on copies with different classes."""
    if not isinstance(train.targets, ClassTargets):
        return []
    contents, classes = train.images.contents[train.rows], train.targets.taken(train.rows)
    return copies.contradictions(contents, classes, lambda index: train.images.title(train.rows[index]), "images")


def preparer(
    job: ImageJob, train: ImageSplit, classes: tuple[str, ...], wanted: Expected | None, shape: Resize
) -> tuple[ImagePreprocessing, list[str]]:
    """The preprocessing, with statistics of the training images or those a pretrained network expects, and notes."""
    chosen = stateless_random.generator(job.train.seed, "statistics").permutation(len(train))[:MEASURED]
    (raw,) = train.gather(np.sort(chosen).astype(np.int64))
    low, high = shape.range_16_bit or pixel_range(raw)
    mean, std = channel_statistics(raw, *(BYTES if raw.dtype == torch.uint8 else (low, high)))
    if wanted is not None and wanted.mean and wanted.std:
        mean, std = list(wanted.mean), list(wanted.std)
    # A run of an older version goes on as it began.
    notes = pixel_scale.check_visible(raw, "data.train") if shape.rules else []
    if (low, high) not in (SHARES, BYTES) and not shape.range_16_bit:
        notes.append(f"pixel values from {low:g} to {high:g} are scaled to 0 to 1")
    if 0 in std:
        notes.append("one channel is constant; it is centered but not scaled")
    if wanted is not None:
        where = wanted.source if wanted.mean else "the training images, for lack of preprocessor_config.json"
        notes.append(f"mean {_listed(mean)} and deviation {_listed(std)} are those of {where}")
        if wanted.ignored:
            notes.append(f"{wanted.source} has {', '.join(wanted.ignored)}, which changes nothing here")
        if wanted.reverses_channels:
            notes.append("the network gets blue, green, red, as its preprocessor_config.json says")
    made = ImagePreprocessing(
        image_size=raw.shape[-1],
        channels=raw.shape[1],
        classes=classes,
        low=low,
        high=high,
        mean=tuple(mean),
        std=tuple(value or 1.0 for value in std),
        augment=Augment(job.data.augment, job.train.seed, tuple(mean)),
        resize=shape,
        reverses_channels=wanted is not None and wanted.reverses_channels,
    )
    return made, notes


def _listed(values: list[float]) -> str:
    return "/".join(f"{value:.3g}" for value in values)
