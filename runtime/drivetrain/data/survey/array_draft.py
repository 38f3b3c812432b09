"""Drafts a spec for an .npz file, from the names and shapes of its arrays."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import npz_file
from drivetrain.data.labels import list_names
from drivetrain.data.series import array_axes
from drivetrain.data.survey import first_values
from drivetrain.data.survey.request import KEY, SurveyRequest
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry, scalar

POSSIBLE = (
    "`images` of shape (N, H, W), (N, H, W, 3) or (N, 3, H, W) with `labels` (N,), or windows `x` of shape "
    "(N, T, channels) with `y` (N,)"
)
Shapes = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
MAX_INTEGER_CLASSES = 50
"""Up to this many distinct integers are classes."""


def array_draft(request: SurveyRequest, path: Path) -> Draft:
    """The draft for arrays of images or windows.

    Raises:
        DataError: if the arrays are neither.
    """
    request.check_no_columns("an .npz has arrays, not columns")
    shapes = _shapes(path)
    if {"images", "labels"} <= shapes.keys():
        return _images(request, path, shapes)
    if {"x", "y"} <= shapes.keys() and len(shapes["x"][0]) in (2, 3):
        return _windows(request, path, shapes)
    raise _no_data(path, shapes)


def _shapes(path: Path) -> Shapes:
    try:
        return npz_file.shapes(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{KEY}: {path} cannot be read: {str(error) or type(error).__name__}",
            f"an .npz file with {POSSIBLE}",
            "write it with numpy.savez_compressed",
        ) from None


def _no_data(path: Path, shapes: Shapes) -> DataError:
    arrays = [f"{name} {shape} {kind}" for name, (shape, kind) in shapes.items()]
    return DataError(
        f"{KEY}: {path} has the arrays {list_names(arrays) or 'none'}",
        POSSIBLE,
        "save them under these names: numpy.savez(..., images=x, labels=y)",
    )


def _images(request: SurveyRequest, path: Path, shapes: Shapes) -> Draft:
    both = ("image-classification", "image-regression")
    request.check_task(both, f"{path} has `images` and `labels`")
    (shape, kind), labels = shapes["images"], _member(path, "labels")
    if len(shape) not in (3, 4) or 0 in shape or kind.kind not in "iufb":
        raise _no_data(path, shapes)
    if len(shape) == 4 and shape[3] not in (1, 3) and shape[1] not in (1, 3):
        raise _no_data(path, shapes)
    last = len(shape) == 3 or shape[3] in (1, 3)
    height, width = shape[1:3] if last else shape[2:4]
    if not labels.ndim or len(labels) != shape[0]:
        raise _no_data(path, shapes)
    task, entries, about, weights = _labels(request, path, labels, shapes)
    draft = Draft(task, "the file holds `images` and `labels`")
    draft.found = [f"{shape[0]:,} images of {height} x {width} pixels, {kind}, {about[0]}", *about[1:]]
    draft.data = [
        Entry("train", scalar(request.written(path)), f"`images` {shape} and `labels` {labels.shape}"),
        *entries,
        first_values.validation(len(labels), "images"),
    ]
    draft.model = Entry("model", "small-cnn", "a small network for a first result; try resnet18 with many images")
    draft.train = [
        first_values.epochs(len(labels), 36_000, 5, 30, "images"),
        first_values.batch_size(len(labels), 32),
        *first_values.optimizer("3e-3", "this network"),
        *weights,
    ]
    return draft


def _labels(
    request: SurveyRequest, path: Path, labels: npt.NDArray[Any], shapes: Shapes
) -> tuple[str, list[Entry], list[str], list[Entry]]:
    """The task for these labels, keys of the spec, what is known of them, and class weights."""
    several = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iufb"
    hot = several and bool(np.isin(labels, (0, 1)).all())
    broken = labels.dtype.kind == "f" and bool((np.floor(labels) != labels).any())
    if hot and request.task != "image-regression":
        entry = Entry("multi_label", "true", "labels of 0 and 1, each of which can be true")
        return "image-classification", [entry], [f"{labels.shape[1]} labels"], []
    if request.task == "image-regression" or several or broken:
        if labels.dtype.kind not in "iufb" or labels.ndim > 2:
            raise _no_data(path, shapes)
        return "image-regression", [], [f"labels from {labels.min():g} to {labels.max():g}"], []
    counts = _classes(path, _column(path, "labels", shapes, "iubUS"), len(labels))
    about = [first_values.format_counts(counts), *first_values.single(counts)]
    return "image-classification", [], about, first_values.class_weights(counts)


def _windows(request: SurveyRequest, path: Path, shapes: Shapes) -> Draft:
    both = ("series-classification", "series-regression")
    request.check_task(both, f"{path} has windows `x` and targets `y`")
    (shape, kind), (target_shape, _) = shapes["x"], shapes["y"]
    if (
        0 in shape
        or kind.kind not in "iufb"
        or not target_shape
        or target_shape[0] != shape[0]
        or len(target_shape) > 2
    ):
        raise _no_data(path, shapes)
    y = _member(path, "y")
    several = len(target_shape) == 2 and target_shape[1] > 1
    numbers = (y.dtype.kind == "f" and bool((np.floor(y) != y).any())) or (y.dtype.kind in "iuf" and _many(y))
    task = request.task or both[several or numbers]
    draft = Draft(task, f"`y` has shape {target_shape}, {y.dtype}" if not request.task else "as --task says")
    rows, channels = shape[1], shape[2] if len(shape) == 3 else 1
    if len(shape) == 3 and array_axes.order(_member(path, "x"), path, KEY) == "channels-time":
        rows, channels = channels, rows
    draft.found = [f"{shape[0]:,} windows of {rows:,} rows and {channels} channels, {kind}"]
    train = []
    if task == "series-classification":
        counts = _classes(path, _column(path, "y", shapes, "iufbUS"), shape[0])
        draft.found += [first_values.format_counts(counts), *first_values.single(counts)]
        train = first_values.class_weights(counts)
    elif y.dtype.kind not in "iufb":
        raise _no_data(path, shapes)
    draft.data = [
        Entry("train", scalar(request.written(path)), f"`x` {shape} and `y` {target_shape}"),
        first_values.validation(shape[0], "windows"),
    ]
    draft.model = Entry("model", network(rows), "convolutions for short patterns, then an LSTM for their order")
    draft.train = [
        first_values.epochs(shape[0], 100_000, 5, 30, "windows"),
        first_values.batch_size(shape[0], 256),
        *first_values.optimizer("3e-3", "this network"),
        *train,
    ]
    return draft


def network(window: int) -> str:
    """The network for windows of this many rows; pooling halves them after each convolution."""
    pool = "" if window >= 4 else ", pool: 1"
    return f"{{name: cnn-lstm, cnn_channels: [32, 64], kernel: 5, lstm_hidden: 64{pool}}}"


def _many(y: npt.NDArray[np.generic]) -> bool:
    return len(np.unique(y)) > MAX_INTEGER_CLASSES


def _classes(path: Path, labels: npt.NDArray[np.generic], samples: int) -> Counter[str]:
    counts = Counter(
        str(label.decode("utf-8", "replace") if isinstance(label, bytes) else label) for label in labels.tolist()
    )
    if len(labels) != samples or not 1 < len(counts) <= max(10, samples / 2):
        raise DataError(
            f"{KEY}: {path} has {samples:,} samples and {len(labels):,} labels of {len(counts):,} classes",
            "one label for each sample, and two classes or more that come back",
            "write the file again",
        )
    return counts


def _column(path: Path, name: str, shapes: Shapes, kinds: str) -> npt.NDArray[np.generic]:
    """One label per sample."""
    values = _member(path, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise _no_data(path, shapes)
    return values


def _member(path: Path, name: str) -> npt.NDArray[np.generic]:
    try:
        with npz_file.open_npz(path) as file:
            return npz_file.member(file, name, path, KEY)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{KEY}: `{name}` of {path} cannot be read: {str(error) or type(error).__name__}",
            f"an .npz file with {POSSIBLE}",
            "write it with numpy.savez_compressed, without Python objects",
        ) from None
