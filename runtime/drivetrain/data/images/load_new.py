"""Loads new images for a trained network: files, folders, manifests or an array file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import Head, NewSamples
from drivetrain.data.formats import table_file
from drivetrain.data.images import image_files, npz_images, pixel_scale, source
from drivetrain.data.images.image_targets import LabelForm, ManifestRows
from drivetrain.data.images.preprocess import from_preprocessing
from drivetrain.data.images.source import Images, ImageSplit
from drivetrain.data.images.split_folders import EXTENSIONS, is_leftover
from drivetrain.data.labels import list_names
from drivetrain.data.source import Source
from drivetrain.errors import DataError


def read(sources: Sequence[Source], preprocessing: dict[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new images, preprocessed exactly as the validation images were; errors as of `load_new.read`.

    `sources` are image files, folders of images at any depth, manifests with a path column, or one .npz. With labels: one
    folder of class folders, a manifest with a label column, or an .npz.
    """
    preparer, path_column, part = from_preprocessing(preprocessing), preprocessing["path_column"], None
    first, key = sources[0], sources[0].key
    if first.labelled:
        _check_has_labels(sources)
        form = LabelForm.of_model(preprocessing)
        part = source.read(first.path, path_column, form, key, first.files, first.budget)
        images, rows, notes = part.images, part.rows, part.notes
    else:
        images, broken, listed = _read_unlabelled(sources, path_column)
        rows = np.setdiff1d(np.arange(len(images), dtype=np.int64), np.array(list(broken), np.int64))
        notes = [*listed.notes, *first.check_bad([*listed.bad, *broken.values()], len(images) + len(listed.bad))]
    if not len(rows):
        raise DataError(
            "\n    ".join(notes) or f"{key}: no images in {', '.join(str(one.path) for one in sources)}",
            f"at least one image of the kinds {' '.join(EXTENSIONS)}",
            "name other files",
        )
    images, shape = pixel_scale.read_as_trained(images, rows, preparer, key)
    target_values = part.build_tensor(rows, heads[""]) if part else None
    split = ImageSplit(images.fit_to(preparer.image_size, preparer.channels, shape), rows, target_values)
    # A prediction may be of one blank image; a score of blank ones says nothing.
    if part:
        notes += pixel_scale.check_some(split, preparer, key)
    return NewSamples(split, preparer, notes)


def _check_has_labels(sources: Sequence[Source]) -> None:
    """Refuse several paths where labels are needed, and a file that has none, such as an image."""
    path, key = sources[0].path, sources[0].key
    if len(sources) > 1:
        raise DataError(f"{key}: {len(sources)} paths with labels", "one at a time", "evaluate them one by one")
    if not path.is_dir() and path.suffix.lower() not in (*table_file.SUFFIXES, ".npz"):
        raise DataError(
            f"{key}: {path} is a file without a label",
            "a folder with one folder per class, a manifest with labels, or an .npz with labels",
            "name one of these, or use `drivetrain predict`, which needs no labels",
        )


def _read_unlabelled(sources: Sequence[Source], path_column: str) -> tuple[Images, dict[int, BadSample], ManifestRows]:
    """Read an .npz file alone, or manifests, folders and single files; also the images that cannot be used, by row."""
    listed = ManifestRows()
    for one in sources:
        path, key = one.path, one.key
        if path.suffix.lower() == ".npz":
            if len(sources) > 1:
                raise DataError(
                    f"{key}: {len(sources)} input paths, one of them an .npz",
                    "a single .npz, or any number of other files",
                    "pass the .npz alone",
                )
            images, _, broken, listed.notes = npz_images.read(path, key, None)
            return images, broken, listed
        if path.suffix.lower() in table_file.SUFFIXES and path.is_file():
            rows = source.read_manifest(path, path_column, None, key, one.files)
            listed.names += rows.names if rows.cells else [os.path.join(path.parent, name) for name in rows.names]
            listed.cells = rows.cells or listed.cells
            listed.bad += rows.bad
            listed.notes += rows.notes
        elif path.is_dir():
            _list_folder(path, listed)
        else:
            listed.names.append(str(path))
    if listed.cells and len(sources) > 1:
        raise DataError(
            f"{sources[0].key}: {len(sources)} input paths, one of them a table with images in it",
            "a single table with images, or any number of other files",
            f"pass {listed.cells.table} alone",
        )
    return *image_files.check_images("", listed.names, listed.cells), listed


def _list_folder(folder: Path, listed: ManifestRows) -> None:
    """Add the images of a folder and its subfolders, without hidden ones, in sorted order; each folder is visited once."""
    visited: set[str] = set()
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
            file_list = listed.names if name.lower().endswith(EXTENSIONS) else other_files
            file_list.append(os.path.join(inner_folder, name))
    if skipped:
        description = "folders of thumbnails, deleted files and the like are skipped"
        listed.notes.append(f"{folder}: {description}: {list_names(sorted(skipped))}")
    if other_files:
        listed.notes.append(f"{folder}: files that are no images are left out: {list_names(other_files)}")
