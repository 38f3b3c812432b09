"""The images of one path, of any kind, with their labels and the rows that can be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.data import bad_samples
from runtime.data.formats import other_files, table_file
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.images import class_folders, image_files, manifest, npz_images
from runtime.data.images.resize import Resize
from runtime.data.stateless_random import Ids
from runtime.errors import DataError
from runtime.job.data import ImageData

Images = npz_images.ImageArrays | image_files.Files
KINDS = (
    "a folder of class folders, a .csv, .tsv, .jsonl or .parquet with paths and labels, an .npz of images and labels"
)


@dataclass
class ImageSource:
    """All images of one path."""

    key: str
    """The spec key that names the path."""
    images: Images
    labels: list[str]
    """As written, one per image."""
    rows: Ids
    """Rows that can be used."""
    notes: list[str]

    def used(self) -> list[str]:
        """Labels of the usable rows."""
        return [self.labels[row] for row in self.rows.tolist()]

    def fit(self, size: int, channels: int, resize: Resize) -> None:
        """Make `images.gather` return squares of `size` pixels with the given number of channels."""
        self.images = self.images.fitted(size, channels, resize)


def read(path: Path, data: ImageData, key: str, files: CsvFiles) -> ImageSource:
    """Find, decode once and check every image of a path.

    Args:
        path: a folder or a file.
        data: column names, and the limit for bad samples.
        key: the spec key that names the path, for messages.
        files: how CSV files are written; gets what was found.

    Raises:
        DataError: if there is no usable data, or more bad samples than allowed.
    """
    if not path.exists():
        raise DataError(f"{key}: {path} does not exist", KINDS, "correct the path; it is relative to the job's folder")
    suffix = path.suffix.lower()
    if suffix == ".npz" and path.is_file():
        images, labels, unusable, notes = npz_images.read(path, key)
        return _checked(key, images, labels, unusable, [], notes, data)
    if path.is_dir():
        listing = class_folders.read(path, key)
        found, broken = image_files.checked(str(path), listing.names)
        return _checked(key, found, listing.labels, broken, [], listing.notes, data)
    if suffix in table_file.SUFFIXES:
        rows = manifest.read(path, data.path_column, data.label_column, key, files)
        found, broken = image_files.checked(os.path.dirname(path) or ".", rows.names)
        return _checked(key, found, rows.labels, broken, rows.bad, [], data)
    other_files.check(path, key)
    raise DataError(f"{key}: {path} has an unknown file type", KINDS, "use one of these")


def _checked(
    key: str,
    images: Images,
    labels: list[str],
    broken: dict[int, bad_samples.BadSample],
    absent: list[bad_samples.BadSample],
    notes: list[str],
    data: ImageData,
) -> ImageSource:
    """The source without its bad samples: `broken` ones by row, and `absent` ones that have no row."""
    unusable = [*absent, *broken.values()]
    left_out = bad_samples.check(unusable, len(images) + len(absent), data.bad_samples, key)
    rows = np.setdiff1d(np.arange(len(images), dtype=np.int64), np.array(list(broken), np.int64))
    return ImageSource(key, images, labels, rows, [*notes, *left_out])
