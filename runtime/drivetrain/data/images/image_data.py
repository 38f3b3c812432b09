"""Reads the data of an image job, from class folders, a manifest or an .npz file; and new images for its network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from drivetrain.data import copies, stateless_random
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, InputRecord, Preprocessing, Split, Targets, keep_unchanged
from drivetrain.data.formats import table_file
from drivetrain.data.images import (
    held_out,
    image_table,
    image_targets,
    mirroring,
    near_copies,
    pixel_scale,
)
from drivetrain.data.images.augment import Augment
from drivetrain.data.images.image_files import Files, Listing
from drivetrain.data.images.image_paths import EXTENSIONS
from drivetrain.data.images.image_table import Geometry, ImageSplit, ImageTable
from drivetrain.data.images.image_targets import LabelForm
from drivetrain.data.images.preprocess import (
    BYTES,
    MAX_MEASURED_IMAGES,
    ImagePreprocessing,
    Range,
    channel_statistics,
    from_preprocessing,
)
from drivetrain.data.images.resize import Resize
from drivetrain.data.partition import Division, Partition
from drivetrain.data.reading import Heads, Preprocessor, Reader
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input
from drivetrain.pretrained.image_input import ExpectedInput


class ImageReader(Reader[ImageTable]):
    """Reads the images of an image job."""

    job: ImageJob
    form: LabelForm
    geometry: Geometry

    def read(self, source: Source) -> ImageTable:
        """Read and check the training images, decoding each once."""
        self.form = LabelForm.of_job(self.job.data, ask=not (self.recorded and self.recorded.same_data))
        table = image_table.read(source, self.job.data.path_column, self.form, decodes=not self.tables_only)
        target, rows = table.targets[""], table.usable
        image_targets.check(target, rows, source.key)
        if target.indices is not None:
            contents, classes = table.images.contents[rows], target.list_names(rows)
            title = lambda index: table.images.title(int(rows[index]))  # noqa: E731
            table.notes += copies.note_contradictions(contents, classes, title, "images")
        return table

    def digest(self, table: ImageTable) -> tuple[Contents, bool]:
        """Digest the pixels of each image."""
        return table.images.contents[table.usable], False

    def find_strata(self, table: ImageTable, target: TargetColumn) -> Strata:
        """Find the class of each image, or its rarest label."""
        return image_targets.find_strata(target, table.usable)

    def hold_out(self, table: ImageTable, division: Division | None) -> Partition:
        """Hold out images: by the user's groups, by sources, or one by one."""
        assert division is not None
        target, partition = table.targets[""], None
        if table.groups is None and not self.tables_only:
            strata = self.find_strata(table, target)
            partition = held_out.divide(self.job, table, strata, division, self.recorded)
        partition = partition or super().hold_out(table, division)
        partition.notes[:0] = image_targets.note_values(target, table.usable)
        return partition

    def build_head(self, name: str, table: ImageTable, training: Ids) -> Head:
        """Build the head; there may be as many classes as there are images."""
        return image_targets.build_head(table.targets[name], table.usable, training, table.source.key)

    def fit(self, table: ImageTable, training: Ids, heads: Heads) -> tuple[FittedImages, list[str]]:
        """Choose size, channels, decoding and scale of the training images; also returns notes."""
        job, recorded, key = self.job, self.recorded, table.source.key
        # Validation files are read with the separator found in the training data.
        form = replace(self.form, separator=table.separator or self.form.separator, groups="")
        if self.tables_only:
            return FittedImages(None, form, job.data.path_column, {}), []
        geometry = image_table.decide_geometry(job, table, recorded, image_input.read_expected(job))
        # Only training images decide how files are decoded: validation data must not influence preprocessing.
        table.images, shape, scale, decoding_notes = pixel_scale.choose(
            table.images, training, geometry.resize, key, job.data.pixel_range, recorded
        )
        if not recorded:
            shape, ground_notes = pixel_scale.choose_ground(table.images, training, shape)
            decoding_notes += ground_notes
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
        return image_table.read(source, self.path_column, self.form, decodes=self.pixels is not None)

    def read_all(self, sources: Sequence[Source]) -> list[ImageTable]:
        """Read new images, together so that all are decoded at once.

        `sources` are image files, folders of images at any depth, manifests with a path column, or one .npz. With
        labels: one folder of class folders, a manifest with a label column, or an .npz.
        """
        first = sources[0]
        if first.labelled:
            _check_has_labels(sources)
            return [self.read(first)]
        return [image_table.open_listing(first, _list_unlabelled(sources, self.path_column))]

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
                f"at least one image of the kinds {' '.join(EXTENSIONS)}",
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


def _check_has_labels(sources: Sequence[Source]) -> None:
    """Refuse several paths if labels are needed, and a file without labels, such as an image."""
    path, key = sources[0].path, sources[0].key
    if len(sources) > 1:
        raise DataError(f"{len(sources)} paths with labels", "one at a time", "evaluate them one by one", key=key)
    if not path.is_dir() and path.suffix.lower() not in (*table_file.SUFFIXES, ".npz"):
        raise DataError(
            f"{path} is a file without a label",
            "a folder with one folder per class, a manifest with labels, or an .npz with labels",
            "name one of these, or use `drivetrain predict`, which needs no labels",
            key=key,
        )


def _list_unlabelled(sources: Sequence[Source], path_column: str) -> Listing:
    """List one .npz file or table of images, or manifests, folders and single files together."""
    listings = [image_table.list_images(one.path, path_column, None, one.key, one.files) for one in sources]
    if len(listings) == 1:
        # The titles of images in a table have no folder.
        return replace(listings[0], root="") if listings[0].cells else listings[0]
    joined = Listing()
    for one, listing in zip(sources, listings, strict=True):
        if listing.arrays is not None or listing.cells:
            kind = "an .npz" if listing.cells is None else "a table with images in it"
            raise DataError(
                f"{len(sources)} input paths, one of them {kind}",
                "one file with images in it, or any number of other files",
                f"pass {one.path} alone",
                key=one.key,
            )
        joined.names += [os.path.join(listing.root, name) for name in listing.names]
        joined.bad += listing.bad
        joined.notes += listing.notes
    return joined
