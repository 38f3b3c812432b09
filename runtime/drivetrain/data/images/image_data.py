"""Loads the data of an image job from class folders, a manifest or an .npz file."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drivetrain.data import copies, groups, stateless_random
from drivetrain.data.dataset import Dataset, Head, InputRecord
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import decoded_cache, geometry, pixel_scale, source
from drivetrain.data.images.augment import Augment
from drivetrain.data.images.decoded_cache import Decoded
from drivetrain.data.images.image_files import Files
from drivetrain.data.images.image_split import ImageSplit
from drivetrain.data.images.image_targets import ClassTargets, LabelForm
from drivetrain.data.images.preprocess import ImagePreprocessing, channel_statistics, from_preprocessing, pixel_range
from drivetrain.data.images.resize import Resize
from drivetrain.data.images.source import ImageSource
from drivetrain.data.images.value_range import BYTES, SHARES
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.hardware.disk_space import DECODED_FOLDER
from drivetrain.hardware.facts import Storage
from drivetrain.job.data import ImageData
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input
from drivetrain.pretrained.expected_input import ExpectedInput

MAX_MEASURED_IMAGES = 2000
"""Largest number of training images from which mean and standard deviation are computed."""


def load(job: ImageJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the images of a job; preprocessing is taken from `recorded` if given, else computed.

    Raises:
        DataError: if the images cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    form = LabelForm.of_job(job.data, ask=not (recorded and recorded.same_data))
    train = source.read(job.resolve(job.data.train), job.data, form, "data.train", files)
    train.targets.check(train.rows, train.key)
    expected = image_input.read_expected(job)
    size, channels, shape, notes = geometry.decide(job, train, recorded, expected)
    notes += _note_contradictions(train)
    validation, train_rows, validation_rows, stored_division = _divide_rows(job, form, train, recorded, files)
    # Only training images decide how files are decoded: validation must not reach into what the model is made of.
    shape, decoding_notes = _choose_decoding(train, train_rows, shape, recorded)
    train.fit(size, channels, shape)

    def compute_head() -> Head:
        return train.targets.head(train.rows, train_rows, train.key)

    head = recorded.head("", compute_head) if recorded else compute_head()
    train_split = _build_split(train, train_rows, head)
    # Computed for a recorded run too: classes and size are those of this data.
    preprocessing, preprocessing_notes = compute_preprocessing(job, train_split, head.classes, expected, shape)
    takes_bytes = pixel_scale.takes_bytes(train.images, train_rows, (preprocessing.low, preprocessing.high))
    preprocessing = replace(preprocessing, takes_bytes=takes_bytes)
    if recorded:
        preprocessing, preprocessing_notes = _restore_preprocessing(
            job, recorded, train_split, replace(preprocessing, image_size=size), preprocessing_notes
        )
    if validation is train:
        validation_split = _build_split(train, validation_rows, head)
        validation_notes: list[str] = []
    else:
        validation_split, validation_notes = _open_validation(train, validation, head, preprocessing, (size, channels))
    counts = f"{len(train_split):,} training and {len(validation_split):,} validation images, {head.outputs_text}"
    columns = {"path_column": job.data.path_column, **form.to_json(train.separator)}
    sources = [train] if validation is train else [train, validation]
    return Dataset(
        train_split,
        validation_split,
        heads={"": head},
        preprocessing=preprocessing.to_json() | columns | stored_division,
        prepare=preprocessing,
        views=job.data.augment.views or 0,
        decoded=not isinstance(train.images, Files),
        notes=[counts, *train.notes, *notes, *decoding_notes, *validation_notes, *preprocessing_notes],
        facts={"oblong": geometry.measure_oblong(train, shape.fit)},
        files={one.key: one.images.names for one in sources if isinstance(one.images, Files) and not one.images.cells},
    )


def _divide_rows(
    job: ImageJob, form: LabelForm, train: ImageSource, recorded: InputRecord | None, files: CsvFiles
) -> tuple[ImageSource, Ids, Ids, dict[str, int]]:
    """Divide the images into training and validation.

    Returns:
        The source of the validation images, which may be `train`, rows for training, rows for validation, and what the
        preprocessing stores of the division.
    """
    if not isinstance(job.data.validation, str):
        division = copies.Division(train.images.contents[train.rows], "images", recorded)
        return train, *_hold_out(train, job.data, job.train.seed, division), division.to_json()
    # Further files are read with the separator that was found in the training data.
    form = replace(form, separator=train.separator or form.separator, groups="")
    path = job.resolve(job.data.validation)
    validation = source.read(path, job.data, form, "data.validation", files)
    return validation, train.rows, validation.rows, {}


def _choose_decoding(
    train: ImageSource, rows: Ids, shape: Resize, recorded: InputRecord | None
) -> tuple[Resize, list[str]]:
    """Return how the training images are decoded, with notes: as an earlier run did it, else by what they hold."""
    if not recorded:
        return pixel_scale.measure_training_files(train.images, rows, shape, train.key)
    before = from_preprocessing(dict(recorded.preprocessing))
    train.images, shape = pixel_scale.read_as_trained(
        train.images, rows, before, train.key, starts_from=not recorded.same_data
    )
    return shape, []


def _open_validation(
    train: ImageSource,
    validation: ImageSource,
    head: Head,
    preprocessing: ImagePreprocessing,
    size_and_channels: tuple[int, int],
) -> tuple[ImageSplit, list[str]]:
    """Return the validation images of other files, read on the scale of the training images, and notes on them."""
    validation.images, shape = pixel_scale.read_as_trained(
        validation.images, validation.rows, preprocessing, validation.key
    )
    validation.fit(*size_and_channels, shape)
    split = _build_split(validation, validation.rows, head)
    scale_notes = pixel_scale.check_some(split, preprocessing, validation.key)
    return split, [
        *(f"validation: {note}" for note in scale_notes),
        *validation.notes,
        *_note_shared(train, validation),
    ]


def _restore_preprocessing(
    job: ImageJob, recorded: InputRecord, train: ImageSplit, current: ImagePreprocessing, notes: list[str]
) -> tuple[ImagePreprocessing, list[str]]:
    """The stored preprocessing, but with classes and size of `current`, which is that of this data; and notes."""
    stored = from_preprocessing(dict(recorded.preprocessing))
    if not recorded.same_data:
        stored, notes = pixel_scale.keep_known(job, stored, current, train.gather(np.arange(1))[0].dtype), []
        stored = replace(stored, resize=current.resize)
    augment = Augment(job.data.augment, job.train.seed, stored.mean)
    return replace(stored, augment=augment, classes=current.classes, image_size=current.image_size), notes


def keep_decoded(dataset: Dataset, storage: Storage, share: int) -> Dataset:
    """The dataset with decoded image files cached; this job may use 1/`share` of the cache's space.

    Raises:
        StorageError: if the cache cannot be written.
    """
    folder = Path(storage.cache) / DECODED_FOLDER
    # By identity of the files, because both splits may share one source.
    caches: dict[int, Decoded] = {}

    def use_cache(original: Any) -> ImageSplit:
        copied: ImageSplit = copy.copy(original)
        if isinstance(original.images, Files):
            if id(original.images) not in caches:
                caches[id(original.images)] = decoded_cache.keep(
                    original.images, folder, (storage.cache_room or 0) // share
                )
            copied.images = caches[id(original.images)]
        return copied

    return replace(dataset, train=use_cache(dataset.train), validation=use_cache(dataset.validation))


def _hold_out(train: ImageSource, data: ImageData, seed: int, division: copies.Division) -> tuple[Ids, Ids]:
    """Divide one source into rows for training and for validation."""
    strata = train.targets.strata(train.rows)
    are_classes = isinstance(train.targets, ClassTargets)
    if train.groups:
        train.notes += [] if are_classes else train.targets.notes(train.rows)
        group_numbers = division.join_groups(groups.number_groups([train.groups[row] for row in train.rows.tolist()]))
        train_rows, validation_rows = groups.divide_by_group(strata, group_numbers, data, seed, train.key)
        without_training = (
            validation_rows[np.isin(strata[validation_rows], strata[train_rows], invert=True)]
            if are_classes
            else validation_rows[:0]
        )
        names = (
            sorted(set(train.targets.take_rows(train.rows[without_training])))
            if isinstance(train.targets, ClassTargets)
            else []
        )
        train.notes += [
            groups.describe_division(data.groups or "", group_numbers, train_rows, validation_rows, names),
            *division.describe(train_rows, validation_rows),
        ]
        return train.rows[train_rows], train.rows[validation_rows]
    train.notes += train.targets.notes(train.rows)
    train_rows, validation_rows = division.divide(strata, data, seed)
    train.notes += division.describe(train_rows, validation_rows)
    if not len(validation_rows):
        raise DataError(
            f"{train.key}: every class has only one image, so none is left for validation",
            "two images of a class or more",
            "add images, or set data.validation to a path",
        )
    return train.rows[train_rows], train.rows[validation_rows]


def _build_split(images: ImageSource, rows: Ids, head: Head) -> ImageSplit:
    """A split of some rows of a source, with their targets."""
    return ImageSplit(images.images, rows, images.targets.tensor(rows, head, images.key))


def _note_shared(train: ImageSource, validation: ImageSource) -> list[str]:
    """A note on images that are in both splits, which makes validation scores too good."""
    training_contents, validation_contents = (part.images.contents[part.rows] for part in (train, validation))
    return copies.note_shared(
        training_contents,
        validation_contents,
        lambda index: validation.images.title(validation.rows[index]),
        "validation images",
    )


def _note_contradictions(train: ImageSource) -> list[str]:
    """A note on copies with different classes."""
    if not isinstance(train.targets, ClassTargets):
        return []
    contents, classes = train.images.contents[train.rows], train.targets.take_rows(train.rows)
    return copies.note_contradictions(contents, classes, lambda index: train.images.title(train.rows[index]), "images")


def compute_preprocessing(
    job: ImageJob, train: ImageSplit, classes: tuple[str, ...], expected: ExpectedInput | None, shape: Resize
) -> tuple[ImagePreprocessing, list[str]]:
    """Compute the preprocessing, with statistics of the training images or of the pretrained network; also notes."""
    measured_rows = stateless_random.make_generator(job.train.seed, "statistics").permutation(len(train))[
        :MAX_MEASURED_IMAGES
    ]
    (raw,) = train.gather(np.sort(measured_rows).astype(np.int64))
    low, high = shape.range_16_bit or pixel_range(raw)
    mean, std = channel_statistics(raw, *(BYTES if raw.dtype == torch.uint8 else (low, high)))
    if expected is not None and expected.mean and expected.std:
        mean, std = list(expected.mean), list(expected.std)
    # A run of an older version goes on as it began.
    notes = pixel_scale.check_visible(raw, "data.train") if shape.rules else []
    if (low, high) not in (SHARES, BYTES) and not shape.range_16_bit:
        notes.append(f"pixel values from {low:g} to {high:g} are scaled to 0 to 1")
    if 0 in std:
        notes.append("one channel is constant; it is centered but not scaled")
    if expected is not None:
        statistics_source = (
            expected.source if expected.mean else "the training images, for lack of preprocessor_config.json"
        )
        notes.append(f"mean {_list_values(mean)} and deviation {_list_values(std)} are those of {statistics_source}")
        if expected.ignored:
            notes.append(f"{expected.source} has {', '.join(expected.ignored)}, which changes nothing here")
        if expected.reverses_channels:
            notes.append("the network gets blue, green, red, as its preprocessor_config.json says")
    preprocessing = ImagePreprocessing(
        image_size=raw.shape[-1],
        channels=raw.shape[1],
        classes=classes,
        low=low,
        high=high,
        mean=tuple(mean),
        std=tuple(value or 1.0 for value in std),
        augment=Augment(job.data.augment, job.train.seed, tuple(mean)),
        resize=shape,
        reverses_channels=expected is not None and expected.reverses_channels,
    )
    return preprocessing, notes


def _list_values(values: list[float]) -> str:
    return "/".join(f"{value:.3g}" for value in values)
