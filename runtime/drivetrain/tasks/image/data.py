"""Reads the data of an image job, from class folders, a manifest or an .npz file; and new images for its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Dataset, InputRecord, Preprocessing, Split, Targets, keep_unchanged
from drivetrain.data.reading import Heads, Preprocessor
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.tasks.image import IMAGES, expected_input, image_table, mirroring, near_copies, pixel_scale
from drivetrain.tasks.image.augment import Augment
from drivetrain.tasks.image.expected_input import ExpectedInput
from drivetrain.tasks.image.file_reader import FileReader
from drivetrain.tasks.image.image_files import Files
from drivetrain.tasks.image.image_table import Geometry, ImageSplit, ImageTable
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.image.job import ImageJob
from drivetrain.tasks.image.preprocess import (
    BYTES,
    MAX_MEASURED_IMAGES,
    ImagePreprocessing,
    Range,
    channel_statistics,
    from_preprocessing,
)
from drivetrain.tasks.image.resize import Resize


class ImageReader(FileReader[ImageTable]):
    """Reads the images of an image job."""

    table_class = ImageTable
    job: ImageJob
    geometry: Geometry

    def fit(self, table: ImageTable, training: Ids, heads: Heads) -> tuple[FittedImages, list[str]]:
        """Choose size, channels, decoding and scale of the training images; also returns notes."""
        job, recorded, key = self.job, self.recorded, table.source.key
        # Validation files are read with the separator found in the training data.
        form = replace(self.form, separator=table.separator or self.form.separator, groups="")
        if self.tables_only:
            return FittedImages(None, form, job.data.path_column, {}), []
        geometry = image_table.decide_geometry(job, table, recorded, expected_input.read_expected(job))
        # Only training images decide how files are decoded: validation data must not influence preprocessing.
        table.images, shape, scale, decoding_notes = pixel_scale.choose(
            table.images, training, geometry.resize, key, job.data.pixel_range, recorded
        )
        chosen_shape, ground_notes = pixel_scale.choose_ground(table.images, training, shape)
        # A resumed run keeps its ground, and its report the notes on it.
        if not recorded or chosen_shape.ground == shape.ground:
            shape, decoding_notes = chosen_shape, [*decoding_notes, *ground_notes]
        table.images = table.images.fit_to(geometry.size, geometry.channels, shape)
        split = ImageSplit(table.images, training, {})
        # Computed for a recorded run too: classes and size come from this data.
        preprocessing, notes = _compute_preprocessing(job, split, heads[""].classes, geometry.expected, shape, scale)
        if recorded:
            preprocessing = replace(preprocessing, image_size=geometry.size)
            preprocessing, notes = _restore_preprocessing(job, recorded, preprocessing, notes)
        stored = {"path_column": job.data.path_column, **self.form.to_json(table.separator)}
        self.geometry = geometry
        fitted = FittedImages(preprocessing, form, job.data.path_column, stored)
        return fitted, [*geometry.notes, *decoding_notes, *notes]

    def note_columns(self, table: ImageTable, training: Ids, heads: Heads) -> list[str]:
        """Return notes on classes that a mirrored image would change."""
        are_numbers = self.form.kind == "numbers"
        names = self.form.columns if are_numbers else heads[""].classes
        return list(mirroring.note_changes(self.job.data.augment, names, are_numbers=are_numbers))

    def note_shared(self, train: ImageTable, split: Split, other: ImageTable, validation: Split) -> list[str]:
        """Return notes on images that are in both files, and on copies of the same source by their names."""
        notes = super().note_shared(train, split, other, validation)
        if isinstance(train.images, Files) and isinstance(other.images, Files):
            validation_paths = [other.images.names[row] for row in other.usable.tolist()]
            training_paths = [train.images.names[row] for row in train.usable.tolist()]
            if shared := near_copies.count_shared(validation_paths, training_paths):
                notes.append(
                    f"{shared:,} of {len(other.usable):,} validation images are copies of sources that training has, too, by "
                    "their names: the score says little about new ones; split before augmenting"
                )
        return notes

    def describe_samples(self, table: ImageTable, heads: Heads) -> str:
        """Name the number of classes, labels or numbers."""
        return f", {heads[''].outputs_text}"

    def complete(self, dataset: Dataset, table: ImageTable, training: Ids) -> Dataset:
        """Return the dataset with the values specific to images in memory or files."""
        share = float(table.images.oblong[table.usable].mean())
        return replace(
            dataset,
            views=self.job.data.augment.views or 0,
            decoded=not isinstance(table.images, Files),
            facts={"oblong": {"share": share, "fit": self.geometry.resize.fit}},
        )


def _restore_preprocessing(
    job: ImageJob, recorded: InputRecord, current: ImagePreprocessing, notes: list[str]
) -> tuple[ImagePreprocessing, list[str]]:
    """Return the stored preprocessing with classes and size of `current`, computed from this data; and notes."""
    stored = from_preprocessing(dict(recorded.preprocessing))
    if not recorded.same_data:
        stored, notes = replace(stored, low=current.low, high=current.high, resize=current.resize), []
    augment = Augment(job.data.augment, job.train.seed, stored.mean)
    return replace(stored, augment=augment, classes=current.classes, image_size=current.image_size), notes


def _compute_preprocessing(
    job: ImageJob,
    train: ImageSplit,
    classes: tuple[str, ...],
    expected: ExpectedInput | None,
    shape: Resize,
    scale: Range,
) -> tuple[ImagePreprocessing, list[str]]:
    """Compute the preprocessing with statistics of training images or of the pretrained network; also returns notes."""
    measured_rows = stateless_random.make_generator(job.train.seed, "statistics").permutation(len(train))[
        :MAX_MEASURED_IMAGES
    ]
    (raw,) = train.gather(np.sort(measured_rows).astype(np.int64))
    mean, std = channel_statistics(raw, *(BYTES if raw.dtype == torch.uint8 else scale))
    if expected is not None and expected.mean and expected.std:
        mean, std = list(expected.mean), list(expected.std)
    notes = pixel_scale.check_visible(raw, "data.train")
    if 0 in std:
        notes.append("one channel is constant; it is centered but not scaled")
    if expected is not None:
        statistics_source = (
            expected.source if expected.mean else "the training images, for lack of preprocessor_config.json"
        )
        notes.append(f"mean {_list_values(mean)} and deviation {_list_values(std)} are those of {statistics_source}")
        if expected.ignored:
            notes.append(f"{expected.source} has {', '.join(expected.ignored)}, which changes nothing here")
    preprocessing = ImagePreprocessing(
        image_size=raw.shape[-1],
        channels=raw.shape[1],
        classes=classes,
        low=scale[0],
        high=scale[1],
        mean=tuple(mean),
        std=tuple(value or 1.0 for value in std),
        augment=Augment(job.data.augment, job.train.seed, tuple(mean)),
        resize=shape,
    )
    return preprocessing, notes


def _list_values(values: list[float]) -> str:
    return "/".join(f"{value:.3g}" for value in values)


@dataclass(frozen=True)
class FittedImages(Preprocessor[ImageTable]):
    """Size, scale and statistics of images, and the columns of a manifest."""

    pixels: ImagePreprocessing | None
    """Size, scale and statistics; None if only tables are read."""
    form: LabelForm
    path_column: str
    columns: Mapping[str, object]
    """Plain JSON values on the columns."""

    @property
    def prepare(self) -> Preprocessing:
        """Scaling, augmentation and normalization on the device."""
        return self.pixels or keep_unchanged

    def read(self, source: Source) -> ImageTable:
        """Read labelled images as the training images."""
        return image_table.read(ImageTable, source, self.path_column, self.form, decodes=self.pixels is not None)

    def read_all(self, sources: Sequence[Source]) -> list[ImageTable]:
        """Read new images, together so that all are decoded at once.

        `sources` are image files, folders of images at any depth, manifests with a path column, or one .npz. With
        labels: one folder of class folders, a manifest with a label column, or an .npz.
        """
        first = sources[0]
        if first.labelled:
            image_table.check_has_labels(sources, IMAGES)
            return [self.read(first)]
        return [
            image_table.open_listing(ImageTable, first, image_table.list_unlabelled(sources, self.path_column, IMAGES))
        ]

    def build_split(
        self, tables: Sequence[ImageTable], rows: Sequence[Ids], targets: Targets
    ) -> tuple[Split, list[str]]:
        """Convert images of another file to the scale of the training images, and check some of them."""
        ((table,), (taken,)), key = (tables, rows), tables[0].source.key
        if key == "data.train":  # converted when the preprocessing was fitted
            return ImageSplit(table.images, taken, targets), []
        assert self.pixels is not None
        if not len(taken):
            raise DataError(
                "\n    ".join(table.notes) or f"no images in {table.source.path}",
                f"at least one image of the kinds {' '.join(IMAGES.extensions)}",
                "name other files",
                key="" if table.notes else key,
            )
        images, shape = pixel_scale.convert(table.images, table.usable, self.pixels.scale, self.pixels.resize, key)
        table.images = images.fit_to(self.pixels.image_size, self.pixels.channels, shape)
        split = ImageSplit(table.images, taken, targets)
        # A single blank image may be predicted, but a score on blank images says nothing.
        notes = pixel_scale.check_some(split, self.pixels, key) if targets else []
        return split, [f"validation: {note}" for note in notes] if key == "data.validation" else notes

    def to_json(self) -> dict[str, Any]:
        """Return preprocessing and columns as plain JSON values."""
        assert self.pixels is not None
        return self.pixels.to_json() | dict(self.columns)


def restore(preprocessing: dict[str, Any]) -> FittedImages:
    """Restore the preprocessing of a trained model."""
    form = LabelForm.of_model(preprocessing)
    return FittedImages(from_preprocessing(preprocessing), form, preprocessing["path_column"], {})
