"""Loads new images for a trained network: files, folders, manifests or an array file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data import bad_samples
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import Head, NewSamples
from drivetrain.data.formats import csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import class_folders, image_files, manifest, npz_images, pixel_scale, source
from drivetrain.data.images.file_names import EXTENSIONS, is_leftover
from drivetrain.data.images.image_column import ImageCells
from drivetrain.data.images.image_split import ImageSplit
from drivetrain.data.images.image_targets import ClassTargets, ImageTargets, LabelForm
from drivetrain.data.images.preprocess import from_preprocessing
from drivetrain.data.images.source import Images
from drivetrain.data.labels import list_names
from drivetrain.errors import DataError

KEY = "data"


@dataclass
class _NewImages:
    """The images in the paths that the user names."""

    images: Images
    targets: ImageTargets | None
    """Of all images; None if they are not read."""
    broken: dict[int, BadSample]
    """Images that cannot be used, by row."""
    absent: list[BadSample] = field(default_factory=list)
    """Rows of a manifest without a path or label."""
    notes: list[str] = field(default_factory=list)


def read(
    paths: Sequence[Path],
    preprocessing: dict[str, Any],
    heads: dict[str, Head],
    files: CsvFiles | None = None,
    *,
    labelled: bool,
    budget: float = 1.0,
) -> NewSamples:
    """Read new images, preprocessed exactly as the validation images were.

    Args:
        paths: image files, folders of images at any depth, manifests with a path column, or one .npz. With labels:
            folders of class folders, manifests with a label column, or one .npz.

    Raises:
        DataError: if no image can be used, or a label is not among the classes.
    """
    files = files or csv_dialect.of_model(preprocessing, {})
    preparer = from_preprocessing(preprocessing)
    form = LabelForm.of_model(preprocessing) if labelled else None
    if form and len(paths) > 1:
        raise DataError(f"{KEY}: {len(paths)} paths with labels", "one at a time", "evaluate them one by one")
    if any(path.suffix.lower() == ".npz" for path in paths):
        new_images = _read_arrays(paths, form)
    else:
        new_images = _read_files(paths, preprocessing["path_column"], files, form)
    unusable = [*new_images.absent, *new_images.broken.values()]
    total = len(new_images.images) + len(new_images.absent)
    notes = [*new_images.notes, *bad_samples.check(unusable, total, budget, KEY)]
    rows = np.setdiff1d(np.arange(len(new_images.images), dtype=np.int64), np.array(list(new_images.broken), np.int64))
    if not len(rows):
        raise DataError(
            "\n    ".join(notes) or f"{KEY}: no images in {', '.join(map(str, paths))}",
            f"at least one image of the kinds {' '.join(EXTENSIONS)}",
            "name other files",
        )
    images, shape = pixel_scale.read_as_trained(new_images.images, rows, preparer, KEY)
    target_values = new_images.targets.tensor(rows, heads[""], KEY) if new_images.targets else None
    split = ImageSplit(images.fit_to(preparer.image_size, preparer.channels, shape), rows, target_values)
    # A prediction may be of one blank image; a score of blank ones says nothing.
    if labelled:
        notes += pixel_scale.check_some(split, preparer, KEY)
    return NewSamples(split, preparer, notes)


def _read_arrays(paths: Sequence[Path], form: LabelForm | None) -> _NewImages:
    """Read the images of an .npz file, which has to be the only path."""
    if len(paths) > 1:
        raise DataError(
            f"{KEY}: {len(paths)} input paths, one of them an .npz",
            "a single .npz, or any number of other files",
            "pass the .npz alone",
        )
    targets: ImageTargets | None = None
    if form:
        images, targets, broken, notes = npz_images.read(paths[0], KEY, form)
    else:
        images, broken, notes = npz_images.read_unlabelled(paths[0], KEY)
    return _NewImages(images, targets, broken, notes=notes)


def _read_files(paths: Sequence[Path], path_column: str, files: CsvFiles, form: LabelForm | None) -> _NewImages:
    """Find and check the images of manifests, folders and single files."""
    names: list[str] = []
    targets: ImageTargets | None = None
    absent: list[BadSample] = []
    notes: list[str] = []
    cells: ImageCells | None = None
    for path in paths:
        if path.suffix.lower() in table_file.SUFFIXES and path.is_file():
            rows = manifest.read(path, path_column, form, KEY, files)
            names += rows.names if rows.cells else [os.path.join(path.parent, name) for name in rows.names]
            targets, cells = rows.targets, rows.cells or cells
            absent += rows.bad
            notes += rows.notes
        elif form:
            _check_folder(path)
            source.check_folder(path, form, KEY)
            listing = class_folders.read(path, KEY)
            names += [os.path.join(path, name) for name in listing.names]
            targets = ClassTargets(listing.labels)
            notes += listing.notes
        elif path.is_dir():
            images, other_files, skipped = _list_folder(path)
            names += images
            if skipped:
                notes.append(
                    f"{path}: folders of thumbnails, deleted files and the like are skipped: {list_names(skipped)}"
                )
            if other_files:
                notes.append(f"{path}: files that are no images are left out: {list_names(other_files)}")
        else:
            names.append(str(path))
    if cells and len(paths) > 1:
        raise DataError(
            f"{KEY}: {len(paths)} input paths, one of them a table with images in it",
            "a single table with images, or any number of other files",
            f"pass {cells.table} alone",
        )
    files_checked, broken = image_files.check_images("", names, cells)
    return _NewImages(files_checked, targets, broken, absent, notes)


def _check_folder(path: Path) -> None:
    """Refuse a file where labels are needed, which only a folder of class folders has."""
    if not path.is_dir():
        raise DataError(
            f"{KEY}: {path} is a file without a label",
            "a folder with one folder per class, a manifest with labels, or an .npz with labels",
            "name one of these, or use `drivetrain predict`, which needs no labels",
        )


def _list_folder(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """List a folder and its subfolders, without hidden files and folders; each folder is visited once.

    Returns:
        Images in sorted order, other files, and names of folders that are skipped as leftovers.
    """
    visited: set[str] = set()
    images: list[str] = []
    other_files: list[str] = []
    skipped: set[str] = set()
    for inner_folder, folders, names in os.walk(folder, followlinks=True):
        visited.add(os.path.realpath(inner_folder))
        skipped |= {name for name in folders if is_leftover(name)}
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in skipped
            and os.path.realpath(os.path.join(inner_folder, name)) not in visited
        )
        for name in sorted(name for name in names if not name.startswith(".")):
            file_list = images if name.lower().endswith(EXTENSIONS) else other_files
            file_list.append(os.path.join(inner_folder, name))
    return images, other_files, sorted(skipped)
