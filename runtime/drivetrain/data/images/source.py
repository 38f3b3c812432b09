"""The images of one path, of any kind, with their labels and the rows that can be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drivetrain.data import bad_samples
from drivetrain.data.formats import table_file, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import class_folders, image_files, manifest, npz_images
from drivetrain.data.images.image_targets import ClassTargets, ImageTargets, LabelForm
from drivetrain.data.images.resize import Resize
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.data import ImageData

Images = npz_images.ImageArrays | image_files.Files
KINDS = (
    "a folder of class folders; a .csv, .tsv, .jsonl or .parquet with paths and labels; a .parquet or .arrow with images and "
    "labels; an .npz of images and labels"
)


@dataclass
class ImageSource:
    """All images of one path."""

    key: str
    """The spec key that names the path."""
    images: Images
    targets: ImageTargets
    """Targets of all images, as the file has them."""
    rows: Ids
    """Rows that can be used."""
    notes: list[str]
    groups: Sequence[str] = ()
    """Names of groups, of all images, if the job has a column of them."""
    separator: str = ""
    """What separates the labels of a cell of a manifest; empty if no cell has several."""

    def fit(self, size: int, channels: int, resize: Resize) -> None:
        """Make `images.gather` return squares of `size` pixels with the given number of channels."""
        self.images = self.images.fit_to(size, channels, resize)


def read(path: Path, data: ImageData, form: LabelForm, key: str, files: CsvFiles) -> ImageSource:
    """Find, decode once and check every image of a path.

    Args:
        path: a folder or a file.
        data: the path column, and the limit for bad samples.
        form: how targets are written.
        key: the spec key that names the path, for messages.
        files: how CSV files are written; what is detected in these files is added to it.

    Raises:
        DataError: if there is no usable data, or more bad samples than allowed.
    """
    if not path.exists():
        raise DataError(f"{key}: {path} does not exist", KINDS, "correct the path; it is relative to the job's folder")
    suffix = path.suffix.lower()
    if form.groups and (path.is_dir() or suffix == ".npz"):
        raise DataError(
            f"{key}: {path} has no column {form.groups}, which data.groups names",
            "groups of images in a manifest: a .csv, .tsv, .jsonl or .parquet",
            "write a manifest, or remove data.groups and name a path for data.validation",
        )
    if suffix == ".npz" and path.is_file():
        images, targets, unusable, notes = npz_images.read(path, key, form)
        return _build_source(key, images, targets, unusable, [], notes, data)
    if path.is_dir():
        check_folder(path, form, key)
        listing = class_folders.read(path, key)
        checked_images, broken = image_files.check_images(str(path), listing.names)
        return _build_source(key, checked_images, ClassTargets(listing.labels), broken, [], listing.notes, data)
    if suffix in table_file.SUFFIXES:
        rows = manifest.read(path, data.path_column, form, key, files)
        checked_images, broken = image_files.check_images(os.path.dirname(path) or ".", rows.names, rows.cells)
        assert rows.targets is not None
        try:
            image_source = _build_source(key, checked_images, rows.targets, broken, rows.bad, rows.notes, data)
        except DataError as error:
            if not rows.unsure:
                raise
            # Data sets of medical images have both.
            action = (
                f"{rows.unsure:,} rows have -1 or nothing where a label is uncertain or not mentioned: write 0 or 1 in their "
                f"place, as the data set's authors advise (often 0 for nothing); or {error.action}"
            )
            raise DataError(error.given, error.possible, action) from None
        image_source.separator, image_source.groups = rows.separator, rows.groups
        return image_source
    table_paths.check_is_table(path, key)
    raise DataError(f"{key}: {path} has an unknown file type", KINDS, "use one of these")


def check_folder(path: Path, form: LabelForm, key: str) -> None:
    """Check that folders can say what is to be predicted: only a class.

    Raises:
        DataError: if they cannot.
    """
    if form.kind != "class":
        target_noun = "several labels" if form.kind == "labels" else "numbers"
        raise DataError(
            f"{key}: {path} is a folder, which gives each image one class and not {target_noun}",
            "a .csv, .tsv, .jsonl or .parquet with paths and what is to be predicted, or an .npz of images and labels",
            "write a manifest",
        )


def _build_source(
    key: str,
    images: Images,
    targets: ImageTargets,
    broken: dict[int, bad_samples.BadSample],
    absent: list[bad_samples.BadSample],
    notes: list[str],
    data: ImageData,
) -> ImageSource:
    """A source of the images that can be used.

    Args:
        key: the spec key that names the path.
        images: all images.
        targets: their targets.
        broken: images that cannot be used, by row.
        absent: bad samples that are not among `images`.
        notes: notes so far.
        data: the limit for bad samples.
    """
    unusable = [*absent, *broken.values()]
    left_out = bad_samples.check(unusable, len(images) + len(absent), data.bad_samples, key)
    rows = np.setdiff1d(np.arange(len(images), dtype=np.int64), np.array(list(broken), np.int64))
    return ImageSource(key, images, targets, rows, [*notes, *left_out])
