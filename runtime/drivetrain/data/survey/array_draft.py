"""Drafts a spec for an .npz file, from the names and shapes of its arrays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import npz_file
from drivetrain.data.notes import list_names
from drivetrain.data.survey import settings
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry

POSSIBLE_ARRAYS = (
    "`images` of shape (N, H, W), (N, H, W, 3) or (N, 3, H, W) with `labels` (N,), or windows `x` of shape "
    "(N, T, channels) with `y` (N,)"
)
SAVE = "numpy.savez(..., images=x, labels=y)"
Shapes = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each array by name."""
MAX_INTEGER_CLASSES = 50
"""Largest number of distinct integers that are taken for classes; more are numbers."""


def draft_arrays(request: SurveyRequest, path: Path) -> Draft:
    """Draft a spec for arrays of images or windows; raises DataError for other arrays."""
    request.check_no_columns("an .npz has arrays, not columns")
    with npz_file.refuse_unreadable(path, KEY, f"an .npz file with {POSSIBLE_ARRAYS}", npz_file.WRITE):
        shapes = npz_file.shapes(path)
    if {"images", "labels"} <= shapes.keys():
        return _draft_images(request, path, shapes)
    if {"x", "y"} <= shapes.keys() and len(shapes["x"][0]) in (2, 3):
        return _draft_windows(request, path, shapes)
    raise _refuse_arrays(path, shapes)


def _refuse_arrays(path: Path, shapes: Shapes) -> DataError:
    """Return the error for arrays that fit no task."""
    arrays = [f"{name} {shape} {kind}" for name, (shape, kind) in shapes.items()]
    return DataError(
        f"{KEY}: {path} has the arrays {list_names(arrays) or 'none'}",
        POSSIBLE_ARRAYS,
        f"save them under these names: {SAVE}",
    )


def _draft_images(request: SurveyRequest, path: Path, shapes: Shapes) -> Draft:
    tasks = ("image-classification", "image-regression")
    request.check_task(tasks, f"{path} has `images` and `labels`")
    shape, data_type = shapes["images"]
    labels = _read_array(path, "labels")
    are_channels_last = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
    are_channels_first = len(shape) == 4 and shape[1] in (1, 3)
    are_images = (are_channels_last or are_channels_first) and 0 not in shape and data_type.kind in "iufb"
    if not are_images or not labels.ndim or len(labels) != shape[0]:
        raise _refuse_arrays(path, shapes)
    height, width = shape[1:3] if are_channels_last else shape[2:4]
    task, entries, label_facts = _describe_labels(request, path, labels, shapes)
    draft = Draft(task, "the file holds `images` and `labels`")
    draft.found = [f"{shape[0]:,} images of {height} x {width} pixels, {data_type}, {label_facts[0]}", *label_facts[1:]]
    draft.data = [
        request.path_entry("train", path, f"`images` {shape} and `labels` {labels.shape}"),
        *entries,
        settings.validation(len(labels), "images"),
    ]
    draft.model = Entry("model", "small-cnn", "a small network for a first result; try resnet18 with many images")
    draft.train = settings.training(len(labels), 36_000, (5, 30), 32, "images", "3e-3")
    return draft


def _describe_labels(
    request: SurveyRequest, path: Path, labels: npt.NDArray[Any], shapes: Shapes
) -> tuple[str, list[Entry], list[str]]:
    """Return the task by the labels of images, keys of the spec, and facts on the labels for the draft."""
    has_several_columns = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iufb"
    are_multi_label = has_several_columns and bool(np.isin(labels, (0, 1)).all())
    have_fractions = labels.dtype.kind == "f" and bool((np.floor(labels) != labels).any())
    if are_multi_label and request.task != "image-regression":
        entry = Entry("multi_label", "true", "labels of 0 and 1, each of which can be true")
        return "image-classification", [entry], [f"{labels.shape[1]} labels"]
    if request.task == "image-regression" or has_several_columns or have_fractions:
        if labels.dtype.kind not in "iufb" or labels.ndim > 2:
            raise _refuse_arrays(path, shapes)
        return "image-regression", [], [f"labels from {labels.min():g} to {labels.max():g}"]
    counts = _count_classes(path, _read_label_column(path, "labels", shapes, "iubUS"), len(labels))
    return "image-classification", [], settings.describe_classes(counts)


def _draft_windows(request: SurveyRequest, path: Path, shapes: Shapes) -> Draft:
    tasks = ("series-classification", "series-regression")
    request.check_task(tasks, f"{path} has windows `x` and targets `y`")
    shape, data_type = shapes["x"]
    target_shape, _ = shapes["y"]
    fits = 0 not in shape and data_type.kind in "iufb" and target_shape[:1] == shape[:1] and len(target_shape) <= 2
    if not fits:
        raise _refuse_arrays(path, shapes)
    y = _read_array(path, "y")
    has_several_targets = len(target_shape) == 2 and target_shape[1] > 1
    have_fractions = y.dtype.kind == "f" and bool((np.floor(y) != y).any())
    are_numbers = have_fractions or (y.dtype.kind in "iuf" and len(np.unique(y)) > MAX_INTEGER_CLASSES)
    task = request.task or tasks[has_several_targets or are_numbers]
    draft = Draft(task, f"`y` has shape {target_shape}, {y.dtype}" if not request.task else "as --task says")
    # The longer axis is taken for the time.
    channels, rows = sorted((*shape[1:], 1)[:2])
    axes = "channels-time" if shape[1] < rows else "time-channels"
    is_unclear = len(shape) == 3 and 1 < shape[1] <= shape[2]
    draft.found = [f"{shape[0]:,} windows of {rows:,} rows and {channels} channels, {data_type}"]
    if task == "series-classification":
        counts = _count_classes(path, _read_label_column(path, "y", shapes, "iufbUS"), shape[0])
        draft.found += settings.describe_classes(counts)
    elif y.dtype.kind not in "iufb":
        raise _refuse_arrays(path, shapes)
    draft.data = [
        request.path_entry("train", path, f"`x` {shape} and `y` {target_shape}"),
        *([Entry("axes", axes, "the longer axis is taken for the time")] if is_unclear else []),
        settings.validation(shape[0], "windows"),
    ]
    draft.model = Entry("model", network(rows), "convolutions for short patterns, then an LSTM for their order")
    draft.train = settings.training(shape[0], 100_000, (5, 30), 256, "windows", "3e-3")
    return draft


def network(window: int) -> str:
    """Return the network for windows of `window` rows; below 4 rows it has no pooling, which halves them twice."""
    pool = "" if window >= 4 else ", pool: 1"
    return f"{{name: cnn-lstm, cnn_channels: [32, 64], kernel: 5, lstm_hidden: 64{pool}}}"


def _count_classes(path: Path, labels: npt.NDArray[np.generic], samples: int) -> Counter[str]:
    """Count the samples of each class."""
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


def _read_label_column(path: Path, name: str, shapes: Shapes, kinds: str) -> npt.NDArray[np.generic]:
    """Read an array with one label per sample, whose type is one of the numpy kinds `kinds`."""
    values = _read_array(path, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise _refuse_arrays(path, shapes)
    return values


def _read_array(path: Path, name: str) -> npt.NDArray[np.generic]:
    return npz_file.read_arrays(path, KEY, [name], f"an .npz file with {POSSIBLE_ARRAYS}", SAVE)[name]
