"""Loads the data of an image job, from class folders, a manifest or an .npz file; and new images for its network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from drivetrain.data import copies, stateless_random, target_columns
from drivetrain.data.dataset import Dataset, Head, InputRecord, NewSamples
from drivetrain.data.formats import csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import (
    held_out,
    image_targets,
    mirroring,
    near_copies,
    pixel_scale,
    source,
)
from drivetrain.data.images.augment import Augment
from drivetrain.data.images.image_files import Files, Listing
from drivetrain.data.images.image_paths import EXTENSIONS
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
from drivetrain.data.images.source import Geometry, ImageSource, ImageSplit
from drivetrain.data.partition import Division
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input
from drivetrain.pretrained.image_input import ExpectedInput


def load(job: ImageJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the images of a job; raises DataError if they cannot be used."""
    form = LabelForm.of_job(job.data, ask=not (recorded and recorded.same_data))
    files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    parts = read_parts(job, form, recorded, files)
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
    are_numbers = form.kind == "numbers"
    names = form.columns if are_numbers else head.classes
    dataset.notes += mirroring.note_changes(job.data.augment, names, are_numbers=are_numbers)
    dataset.notes += [*first_notes, *validation_notes, *last_notes]
    dataset.notes += parts.train.note_codes(head, job.data.bad_samples)
    if parts.validation is not parts.train:
        dataset.notes += parts.validation.note_codes(head, is_new=True)
    return dataset


def _choose_preprocessing(
    job: ImageJob, parts: ImageParts, recorded: InputRecord | None
) -> tuple[Head, ImagePreprocessing, list[str], list[str]]:
    """Choose the head and the preprocessing; also returns notes on decoding and on pixel values."""
    geometry = parts.geometry
    # Only training images decide how files are decoded: validation data must not influence preprocessing.
    source, rows = parts.train, parts.train_rows
    source.images, shape, scale, decoding_notes = pixel_scale.choose(
        source.images, rows, geometry.resize, source.key, job.data.pixel_range, recorded
    )
    if not recorded:
        shape, ground_notes = pixel_scale.choose_ground(source.images, rows, shape)
        decoding_notes += ground_notes
    source.images = source.images.fit_to(geometry.size, geometry.channels, shape)

    build_head = partial(image_targets.build_head, source.target, source.rows, rows, source.key)
    head = recorded.head("", build_head) if recorded else build_head()
    split = parts.build_measured_split(head)
    # Computed for a recorded run too: classes and size come from this data.
    preprocessing, notes = _compute_preprocessing(job, split, head.classes, geometry.expected, shape, scale)
    if recorded:
        preprocessing = replace(preprocessing, image_size=geometry.size)
        preprocessing, notes = _restore_preprocessing(job, recorded, preprocessing, notes)
    return head, preprocessing, [*geometry.notes, *decoding_notes], notes


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


@dataclass
class ImageParts:
    """Images of a job in memory or files, divided into training and validation."""

    train: ImageSource
    train_rows: Ids
    validation: ImageSource
    """`train` if validation images are held out of the training data."""
    validation_rows: Ids
    job: ImageJob
    stored: dict[str, int]
    """Part of the division that the preprocessing stores."""
    geometry: Geometry
    """Size, channels and decoding of the images for the network."""
    train_split: ImageSplit | None = None

    def build_measured_split(self, head: Head) -> ImageSplit:
        """Build the split of the training images, which decide the preprocessing."""
        self.train_split = _build_split(self.train, self.train_rows, head)
        return self.train_split

    def build_splits(self, head: Head, prepare: ImagePreprocessing) -> tuple[ImageSplit, ImageSplit, list[str]]:
        """Build the splits for training and for validation; also returns notes on validation.

        Raises:
            DataError: if the validation images are on another scale than the training images.
        """
        train, validation = self.train_split, self.validation
        assert train is not None
        if validation is self.train:
            rows, code_notes = target_columns.keep_scored(validation.target, self.validation_rows, head)
            return train, _build_split(validation, rows, head), code_notes
        images, shape = pixel_scale.convert(
            validation.images, validation.rows, prepare.scale, prepare.resize, validation.key
        )
        validation.images = images.fit_to(self.geometry.size, self.geometry.channels, shape)
        rows, code_notes = target_columns.keep_scored(validation.target, validation.rows, head)
        split = _build_split(validation, rows, head)
        scale_notes = pixel_scale.check_some(split, prepare, validation.key)
        notes = [f"validation: {note}" for note in scale_notes]
        return train, split, [*notes, *code_notes, *validation.notes, *_note_shared(self.train, validation)]

    def complete(self, dataset: Dataset) -> Dataset:
        """Return the dataset with the values specific to images in memory or files."""
        share = float(self.train.images.oblong[self.train.rows].mean()) if len(self.train.rows) else 0.0
        return replace(
            dataset,
            views=self.job.data.augment.views or 0,
            decoded=not isinstance(self.train.images, Files),
            notes=[*dataset.notes, *self.train.notes],
            facts={"oblong": {"share": share, "fit": self.geometry.resize.fit}},
            files={one.key: names for one in (self.train, self.validation) if (names := _list_files(one.images))},
        )


def read_parts(job: ImageJob, form: LabelForm, recorded: InputRecord | None, files: CsvFiles) -> ImageParts:
    """Read and divide the images of a job; raises DataError if the images cannot be used."""
    data = job.data
    train = source.read(job.resolve(data.train), data.path_column, form, "data.train", files, data.bad_samples)
    image_targets.check(train.target, train.rows, train.key)
    image_geometry = source.decide_geometry(job, train, recorded, image_input.read_expected(job))
    image_geometry.notes.extend(_note_contradictions(train))
    if isinstance(data.validation, str):
        # Validation files are read with the separator found in the training data.
        form = replace(form, separator=train.separator or form.separator, groups="")
        path = job.resolve(data.validation)
        validation = source.read(path, data.path_column, form, "data.validation", files, data.bad_samples)
        return ImageParts(train, train.rows, validation, validation.rows, job, {}, image_geometry)
    division = Division(train.images.contents[train.rows], "images", recorded)
    partition, stored = held_out.divide(job, train, division, recorded)
    train_rows, validation_rows = train.rows[partition.training], train.rows[partition.validation]
    return ImageParts(train, train_rows, train, validation_rows, job, stored, image_geometry)


def _build_split(images: ImageSource, rows: Ids, head: Head) -> ImageSplit:
    return ImageSplit(images.images, rows, images.build_tensor(rows, head))


def _note_shared(train: ImageSource, validation: ImageSource) -> list[str]:
    """Return notes on images that are in both splits, which makes validation scores too good."""
    training_contents, validation_contents = (part.images.contents[part.rows] for part in (train, validation))
    notes = copies.note_shared(
        training_contents,
        validation_contents,
        lambda index: validation.images.title(validation.rows[index]),
        "validation images",
    )
    if isinstance(train.images, Files) and isinstance(validation.images, Files):
        validation_paths = [validation.images.names[row] for row in validation.rows.tolist()]
        training_paths = [train.images.names[row] for row in train.rows.tolist()]
        if shared := near_copies.count_shared(validation_paths, training_paths):
            notes.append(
                f"{shared:,} of {len(validation.rows):,} validation images are copies of sources that training has, too, by their "
                "names: the score says little about new ones; split before augmenting"
            )
    return notes


def _note_contradictions(train: ImageSource) -> list[str]:
    if train.target.indices is None:
        return []
    contents, classes = train.images.contents[train.rows], train.target.list_names(train.rows)
    return copies.note_contradictions(contents, classes, lambda index: train.images.title(train.rows[index]), "images")


def read(sources: Sequence[Source], preprocessing: dict[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new images, preprocessed exactly as validation images; raises as `load_data.load_new` does.

    `sources` are image files, folders of images at any depth, manifests with a path column, or one .npz. With labels:
    one folder of class folders, a manifest with a label column, or an .npz.
    """
    preparer, path_column, part = from_preprocessing(preprocessing), preprocessing["path_column"], None
    first, key = sources[0], sources[0].key
    if first.labelled:
        _check_has_labels(sources)
        form = LabelForm.of_model(preprocessing)
        part = source.read(first.path, path_column, form, key, first.files, first.budget)
        images, rows, notes = part.images, part.rows, part.notes
    else:
        listing = _list_unlabelled(sources, path_column)
        images, notes = listing.open_images(), listing.notes
        rows = np.setdiff1d(np.arange(len(images), dtype=np.int64), np.array(list(listing.broken), np.int64))
        notes += listing.check_bad(len(images), first.budget, key)
    if not len(rows):
        raise DataError(
            "\n    ".join(notes) or f"no images in {', '.join(str(source.path) for source in sources)}",
            f"at least one image of the kinds {' '.join(EXTENSIONS)}",
            "name other files",
            key="" if notes else key,
        )
    images, shape = pixel_scale.convert(images, rows, preparer.scale, preparer.resize, key)
    target_values = part.build_tensor(rows, heads[""]) if part else None
    split = ImageSplit(images.fit_to(preparer.image_size, preparer.channels, shape), rows, target_values)
    # A single blank image may be predicted, but a score on blank images says nothing.
    if part:
        notes += pixel_scale.check_some(split, preparer, key)
    return NewSamples(split, preparer, notes, files=_list_files(split.images))


def _list_files(images: object) -> Sequence[str]:
    """List the names of image files; empty for pixels and for images in cells of a table."""
    return images.names if isinstance(images, Files) and not images.cells else ()


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
    listings = [source.list_images(one.path, path_column, None, one.key, one.files) for one in sources]
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
