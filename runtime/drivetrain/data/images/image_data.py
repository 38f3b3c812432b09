"""Loads the data of an image job: from class folders, a manifest or an .npz file, or streamed from shards."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Dataset, Head, InputRecord
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import decoded_cache, image_parts, pixel_scale
from drivetrain.data.images.augment import Augment
from drivetrain.data.images.decoded_cache import Decoded
from drivetrain.data.images.image_files import Files
from drivetrain.data.images.image_parts import ImageParts
from drivetrain.data.images.image_targets import LabelForm
from drivetrain.data.images.preprocess import (
    BYTES,
    MAX_MEASURED_IMAGES,
    SHARES,
    ImagePreprocessing,
    channel_statistics,
    from_preprocessing,
    pixel_range,
)
from drivetrain.data.images.resize import Resize
from drivetrain.data.images.source import ImageSource, ImageSplit
from drivetrain.hardware.disk_space import DECODED_FOLDER
from drivetrain.hardware.facts import Storage
from drivetrain.job.images import ImageJob
from drivetrain.pretrained.expected_input import ExpectedInput

if TYPE_CHECKING:
    from drivetrain.data.images.image_shards import StreamedParts


def load(job: ImageJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the images of a job; of shards only the labels are read, and some of the images.

    Raises:
        DataError: if the images cannot be used.
        SpecError: if the cache of streamed images is too small for the order.
    """
    form = LabelForm.of_job(job.data, ask=not (recorded and recorded.same_data))
    parts: ImageParts | StreamedParts
    if job.data.stream:
        from drivetrain.data.images import image_shards

        parts = image_shards.read(job, form, recorded)
    else:
        files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
        parts = image_parts.read(job, form, recorded, files)
    head, prepare, first_notes, last_notes = _choose_preprocessing(job, parts, recorded)
    train, validation, validation_notes = parts.build_splits(head, prepare)
    columns = {"path_column": job.data.path_column, **form.to_json(parts.train.separator)}
    dataset = parts.complete(
        Dataset(
            train,
            validation,
            heads={"": head},
            preprocessing=prepare.to_json() | columns | parts.stored,
            prepare=prepare,
            notes=[f"{len(train):,} training and {len(validation):,} validation images, {head.outputs_text}"],
        )
    )
    dataset.notes += [*first_notes, *validation_notes, *last_notes]
    return dataset


def _choose_preprocessing(
    job: ImageJob, parts: ImageParts | StreamedParts, recorded: InputRecord | None
) -> tuple[Head, ImagePreprocessing, list[str], list[str]]:
    """Choose the head and the preprocessing; also notes on how images are decoded, and on the values of pixels."""
    geometry = parts.geometry
    if geometry is None:
        # A run goes on with what it has stored, without reading any of the images again.
        assert recorded is not None
        stored = from_preprocessing(dict(recorded.preprocessing))
        stored = replace(stored, augment=Augment(job.data.augment, job.train.seed, stored.mean))
        return recorded.heads[""], stored, [], []
    # Only training images decide how files are decoded: validation must not reach into what the model is made of.
    source, rows = (parts.sample, parts.sample.rows) if parts.sample else (parts.train, parts.train_rows)
    assert isinstance(source, ImageSource)
    shape, decoding_notes = geometry.resize, list[str]()
    if recorded:
        earlier = from_preprocessing(dict(recorded.preprocessing))
        source.images, shape = pixel_scale.read_as_trained(
            source.images, rows, earlier, source.key, starts_from=not recorded.same_data
        )
    else:
        shape, decoding_notes = pixel_scale.measure_training_files(source.images, rows, shape, source.key)
    source.fit(geometry.size, geometry.channels, shape)

    def compute_head() -> Head:
        return parts.train.compute_head(parts.train_rows)

    head = recorded.head("", compute_head) if recorded else compute_head()
    split = parts.build_measured_split(head)
    # Computed for a recorded run too: classes and size are those of this data.
    preprocessing, notes = _compute_preprocessing(job, split, head.classes, geometry.expected, shape)
    takes_bytes = pixel_scale.takes_bytes(source.images, rows, (preprocessing.low, preprocessing.high))
    preprocessing = replace(preprocessing, takes_bytes=takes_bytes)
    if parts.sample:
        notes = [f"size, channels, mean and deviation are those of {len(rows):,} training images", *notes]
    if recorded:
        preprocessing = replace(preprocessing, image_size=geometry.size)
        preprocessing, notes = _restore_preprocessing(job, recorded, split, preprocessing, notes)
    return head, preprocessing, [*geometry.notes, *decoding_notes], notes


def _restore_preprocessing(
    job: ImageJob, recorded: InputRecord, train: ImageSplit, current: ImagePreprocessing, notes: list[str]
) -> tuple[ImagePreprocessing, list[str]]:
    """The stored preprocessing, but with classes and size of `current`, which is that of this data; and notes."""
    stored = from_preprocessing(dict(recorded.preprocessing))
    if not recorded.same_data:
        # Streamed images have 8 bits, whatever the scale of the earlier run.
        if not job.data.stream:
            stored = pixel_scale.keep_known(job, stored, current, train.gather(np.arange(1))[0].dtype)
        stored, notes = replace(stored, resize=current.resize), []
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


def _compute_preprocessing(
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
