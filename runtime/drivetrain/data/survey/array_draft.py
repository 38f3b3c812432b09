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
IMAGES, WINDOWS = ("images", "labels"), ("x", "y")
TASKS = {
    IMAGES: ("image-classification", "image-regression"),
    WINDOWS: ("series-classification", "series-regression"),
}
MAX_INTEGER_CLASSES = 50
"""Largest number of distinct integers beside windows that are taken for classes; more are numbers."""


def draft_arrays(request: SurveyRequest, path: Path) -> Draft:
    """Draft a spec for arrays of images or windows; raises DataError for other arrays."""
    request.check_no_columns("an .npz has arrays, not columns")
    possible = f"an .npz file with {POSSIBLE_ARRAYS}"
    with npz_file.refuse_unreadable(path, KEY, possible, npz_file.WRITE):
        shapes = npz_file.shapes(path)
    for names, tasks in TASKS.items():
        if {*names} <= shapes.keys():
            request.check_task(tasks, f"{path} has `{names[0]}` and `{names[1]}`")
            targets = npz_file.read_arrays(path, KEY, [names[1]], possible, SAVE)[names[1]]
            shape, data_type = shapes[names[0]]
            is_usable = 0 not in shape and data_type.kind in "iufb" and targets.shape[:1] == shape[:1]
            facts = _describe_samples(names, shape) if is_usable else None
            if facts and (labels := _describe_targets(request, path, names, targets)):
                return _draft(request, path, names, shape, targets, (f"{facts[0]}, {data_type}", *facts[1:]), labels)
    arrays = [f"{name} {shape} {kind}" for name, (shape, kind) in shapes.items()]
    raise DataError(
        f"{KEY}: {path} has the arrays {list_names(arrays) or 'none'}",
        POSSIBLE_ARRAYS,
        f"save them under these names: {SAVE}",
    )


def _draft(
    request: SurveyRequest,
    path: Path,
    names: tuple[str, str],
    shape: tuple[int, ...],
    targets: npt.NDArray[Any],
    facts: tuple[str, list[Entry]],
    labels: tuple[str, list[Entry], list[str]],
) -> Draft:
    (fact, axes), (task, entries, label_facts) = facts, labels
    noun, (samples, target) = "images" if names == IMAGES else "windows", names
    draft = Draft(task, "as --task says" if request.task else f"`{target}` has shape {targets.shape}, {targets.dtype}")
    draft.found = [f"{fact}, {label_facts[0]}", *label_facts[1:]]
    draft.data = [
        request.path_entry("train", path, f"`{samples}` {shape} and `{target}` {targets.shape}"),
        *axes,
        *entries,
        settings.validation(len(targets), noun),
    ]
    if names == IMAGES:
        draft.model = Entry("model", "small-cnn", "a small network for a first result; try resnet18 with many images")
        draft.train = settings.training(len(targets), 36_000, (5, 30), 32, noun, "3e-3")
    else:
        window = max((*shape[1:], 1)[:2])
        draft.model = Entry(
            "model", network(window, len(targets)), "convolutions for short patterns, then an LSTM for their order"
        )
        draft.train = settings.training(len(targets), 100_000, (5, 30), 256, noun, "3e-3")
    return draft


def _describe_samples(names: tuple[str, str], shape: tuple[int, ...]) -> tuple[str, list[Entry]] | None:
    """Describe the images or windows in an array of this shape, with the key of its axes; None if there are none.

    The longer axis of windows is taken for the time.
    """
    if names == IMAGES:
        has_colors_first = len(shape) == 4 and shape[3] not in (1, 3)
        if len(shape) not in (3, 4) or (has_colors_first and shape[1] not in (1, 3)):
            return None
        height, width = shape[2:] if has_colors_first else shape[1:3]
        return f"{shape[0]:,} images of {height} x {width} pixels", []
    if len(shape) not in (2, 3):
        return None
    channels, rows = sorted((*shape[1:], 1)[:2])
    axes = "channels-time" if shape[1] < rows else "time-channels"
    is_unclear = len(shape) == 3 and 1 < shape[1] <= shape[2]
    entries = [Entry("axes", axes, "the longer axis is taken for the time")] if is_unclear else []
    return f"{shape[0]:,} windows of {rows:,} rows and {channels} channels", entries


def _describe_targets(
    request: SurveyRequest, path: Path, names: tuple[str, str], targets: npt.NDArray[Any]
) -> tuple[str, list[Entry], list[str]] | None:
    """Return the task by the targets, keys of the spec, and facts on the targets; None if they fit no task."""
    kind, tasks = targets.dtype.kind, TASKS[names]
    has_several_columns = targets.ndim == 2 and targets.shape[1] > 1
    has_fractions = kind == "f" and bool((np.floor(targets) != targets).any())
    are_many = names == WINDOWS and kind in "iuf" and len(np.unique(targets)) > MAX_INTEGER_CLASSES
    if targets.ndim > 2 or 0 in targets.shape or kind not in "iufbUS":
        return None
    can_be_labels = names == IMAGES and has_several_columns and kind in "iufb" and request.task != tasks[1]
    if can_be_labels and bool(np.isin(targets, (0, 1)).all()):
        entry = Entry("multi_label", "true", "labels of 0 and 1, each of which can be true")
        return tasks[0], [entry], [f"{targets.shape[1]} labels"]
    task = request.task or tasks[has_several_columns or has_fractions or are_many]
    if task == tasks[1]:
        return (task, [], [f"{names[1]} from {targets.min():g} to {targets.max():g}"]) if kind in "iufb" else None
    if has_several_columns or (names == IMAGES and kind == "f"):
        return None
    return task, [], settings.describe_classes(_count_classes(path, targets.reshape(len(targets))))


def network(window: int, count: int) -> str:
    """Return the network for `count` windows of `window` rows; below 4 rows it has no pooling, which halves them twice."""
    pool = "" if window >= 4 else ", pool: 1"
    skip = ", skip: true" if count <= settings.MOST_SKIP_SAMPLES else ""
    return f"{{name: cnn-lstm, cnn_channels: [32, 64], kernel: 5, lstm_hidden: 64{pool}{skip}}}"


def _count_classes(path: Path, labels: npt.NDArray[np.generic]) -> Counter[str]:
    """Count the samples of each class."""
    cells = (label.decode("utf-8", "replace") if isinstance(label, bytes) else label for label in labels.tolist())
    counts = Counter(map(str, cells))
    if not 1 < len(counts) <= max(10, len(labels) / 2):
        raise DataError(
            f"{KEY}: {path} has {len(labels):,} samples and {len(labels):,} labels of {len(counts):,} classes",
            "one label for each sample, and two classes or more that come back",
            "write the file again",
        )
    return counts
