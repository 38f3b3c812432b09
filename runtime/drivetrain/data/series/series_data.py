"""Loads the data of a series job: windows of a long table, or arrays of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data import copies, groups, target_columns
from drivetrain.data.dataset import Dataset, Head, InputRecord, NewSamples, keep_unchanged
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.labels import list_names, note_similar_names
from drivetrain.data.series import augment, timeline, window_split, windows
from drivetrain.data.series.timeline import WindowLayout
from drivetrain.data.series.window_split import WindowSplit
from drivetrain.data.series.windows import Scale
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError, SpecError
from drivetrain.job.series import SeriesClassificationJob, SeriesJob

OVERLAPPING = "overlapping"
"""Key in the stored preprocessing of a run whose split keeps windows that share rows together."""


def load(job: SeriesJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the windows of a job; the scale is taken from `recorded` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    classes, path = isinstance(job, SeriesClassificationJob), job.resolve(job.data.train)
    if job.data.arrays:
        train_part, validation_part, stored_split = _read_arrays(job, path, classes, recorded)
        stored: dict[str, Any] = {"form": "arrays", "classes": classes, **stored_split}
    else:
        train_part, validation_part, layout = _read_long(job, path, _build_layout(job, classes, recorded), files)
        stored = {"form": "long", **layout.to_json()}
    if recorded and not recorded.same_data:
        _check_channels(job, recorded, stored, train_part.values.shape[1])
    assert train_part.target is not None
    target, target_rows, key = train_part.target, train_part.target_rows, train_part.key

    def compute_head() -> Head:
        return target_columns.build_head(target, target_rows, target_rows, key)

    head = recorded.head("", compute_head) if recorded else compute_head()
    fitted_scale, constant = windows.fit_scale(train_part.fitting_rows)
    scale = _scale_from_json(recorded.preprocessing) if recorded else fitted_scale
    spread = tuple(
        0.0 if channel in constant else deviation / unit
        for channel, (deviation, unit) in enumerate(zip(fitted_scale.std, scale.std, strict=True))
    )
    values = scale.scale(train_part.values)
    train = train_part.split(values, head)
    validation = validation_part.split(
        values if validation_part.values is train_part.values else scale.scale(validation_part.values), head
    )
    notes = [
        f"{len(train):,} training and {len(validation):,} validation windows of {train_part.length} rows",
        *note_similar_names(target.names[0], head.classes),
        *train_part.notes,
        *validation_part.notes,
    ]
    if isinstance(job.data.validation, str):
        notes += copies.note_shared(train.contents(), validation.contents(), validation.title, "validation windows")
    if constant:
        names = ", ".join(stored["features"][i] if "features" in stored else f"channel {i}" for i in constant)
        notes.append(f"constant in the training rows, so centered but not scaled: {names}")
    stored |= {"kind": "series", "length": train_part.length, "channels": len(scale.mean), **scale.to_json()}
    prepare = augment.build_preprocessing(job.data.augment, job.train.seed, spread)
    return Dataset(train, validation, {"": head}, stored, prepare, notes=notes)


def read(
    paths: Sequence[Path],
    preprocessing: Mapping[str, Any],
    heads: Mapping[str, Head],
    files: CsvFiles | None = None,
    *,
    labelled: bool,
    budget: float = 1.0,
) -> NewSamples:
    """Read new windows, preprocessed exactly as the training windows were.

    Args:
        paths: long tables with time and features, or arrays, as in training.
        preprocessing: of the `Dataset` that the network was trained on.
        heads: of that dataset.
        files: how CSV files are written; gets what was found.
        labelled: whether to read targets, for an evaluation.
        budget: largest share of samples that may be unusable.

    Raises:
        DataError: if a file cannot be used, or has a label that training did not have.
    """
    files = files or csv_dialect.of_model(preprocessing, {})
    scale, parts_and_splits = _scale_from_json(preprocessing), []
    for path in paths:
        part = _read_new(path, preprocessing, files, budget, labelled)
        parts_and_splits.append((part, part.split(scale.scale(part.values), heads[""] if labelled else None)))
    notes = [note for part, _ in parts_and_splits for note in part.notes]
    return NewSamples(windows.join_splits([split for _, split in parts_and_splits]), keep_unchanged, notes)


def _check_channels(job: SeriesJob, recorded: InputRecord, stored: Mapping[str, Any], channels: int) -> None:
    """Check that the channels are those that an earlier run was trained on.

    Raises:
        SpecError: if they differ in names, order or number.
    """
    trained_features, new_features = recorded.preprocessing.get("features"), stored.get("features")
    if trained_features and new_features and list(trained_features) != list(new_features):
        description = f"is {', '.join(new_features)}, and the earlier run was trained on {', '.join(trained_features)}"
        problem = job.problem(
            ("data", "features"), description, "the same columns in the same order", "leave features out"
        )
        raise SpecError([problem])
    if channels != recorded.preprocessing["channels"]:
        description = f"takes {recorded.preprocessing['channels']} channels, and data.train has {channels}"
        key = job.model_key("name")
        raise SpecError(
            [job.problem(key, description, "data with the same channels", "use another run, or a new network")]
        )


def _scale_from_json(preprocessing: Mapping[str, Any]) -> Scale:
    return Scale(tuple(preprocessing["mean"]), tuple(preprocessing["std"]))


def _build_layout(job: SeriesJob, classes: bool, recorded: InputRecord | None) -> WindowLayout:
    data = job.data
    assert data.time is not None
    assert data.window is not None
    recorded_features = recorded.preprocessing.get("features", ()) if recorded else ()
    features = data.features or tuple(recorded_features)
    return WindowLayout(
        data.time,
        features,
        data.label or (),
        classes,
        data.group,
        data.window,
        data.step,
        data.max_gap,
        data.date_format,
    )


def _read_long(
    job: SeriesJob, path: Path, layout: WindowLayout, files: CsvFiles
) -> tuple[WindowSplit, WindowSplit, WindowLayout]:
    """Read training and validation windows of long tables: of two, or of one that is split by groups or in time."""
    data = job.data
    train_line = timeline.read_timeline(
        path, "data.train", layout, data.bad_samples, files, labelled=True, groups=data.groups
    )
    if isinstance(data.validation, str):
        validation_line = timeline.read_timeline(
            job.resolve(data.validation), "data.validation", train_line.layout, data.bad_samples, files, labelled=True
        )
        return (
            window_split.cut_all(train_line, data.bad_samples),
            window_split.cut_all(validation_line, data.bad_samples),
            train_line.layout,
        )
    if data.groups:
        return *_divide_by_group(job, window_split.cut_by_group(train_line, data.bad_samples)), train_line.layout
    return *window_split.cut_before_and_after(train_line, data.validation, data.bad_samples), train_line.layout


def _read_arrays(
    job: SeriesJob, path: Path, classes: bool, recorded: InputRecord | None
) -> tuple[WindowSplit, WindowSplit, dict[str, Any]]:
    """Read training and validation windows of arrays, from two files or from one.

    One file is split by groups, by class or at random; windows that share rows are on the same side.

    Returns:
        Training windows, validation windows, and what the preprocessing stores of axes and split.
    """
    data = job.data
    has_validation_file = isinstance(data.validation, str)
    train = window_split.read_stack(
        path,
        "data.train",
        classes,
        data.bad_samples,
        labelled=True,
        axes=data.axes,
        groups=None if has_validation_file else data.groups,
    )
    axes = "channels-time" if train.is_transposed else "time-channels"
    stored: dict[str, Any] = {"axes": axes} if train.is_transposed else {}
    if isinstance(data.validation, str):
        validation_path = job.resolve(data.validation)
        validation_part = window_split.read_stack(
            validation_path, "data.validation", classes, data.bad_samples, labelled=True, axes=axes
        )
        validation_part.check_shape(train.length, train.values.shape[1])
        validation_part.notes.extend(windows.describe_shared(train.windows(), validation_part.windows()))
        return train, validation_part, stored
    division = copies.Division(
        copies.digest_rows(train.values.reshape(-1, *train.shape)[train.target_rows]), "windows", recorded
    )
    # A resumed run that was started before windows were compared keeps its split.
    joins_stretches = not (recorded and recorded.same_data) or OVERLAPPING in recorded.preprocessing
    if train.groups is None and joins_stretches:
        stretches = windows.number_stretches(train.windows())
        if stretches.max() + 1 < len(stretches):
            train = replace(train, groups=stretches)
            stored[OVERLAPPING] = True
    if train.groups is not None:
        return *_divide_by_group(job, train, division), stored | division.to_json()
    train_rows, validation_rows = division.divide(_find_strata(train), data, job.train.seed)
    train.notes.extend(division.describe(train_rows, validation_rows))
    if not len(validation_rows):
        raise DataError(
            f"data.train: {len(train.starts):,} usable windows, too few to leave any for validation",
            "two windows or more, in a classification of one class",
            "add data, or set data.validation to a path",
        )
    return train.take_rows(train_rows), replace(train.take_rows(validation_rows), notes=[]), stored | division.to_json()


def _find_strata(train: WindowSplit) -> Ids:
    """The class of each window, by which the split is stratified; 0 for all if there are no classes."""
    assert train.target is not None
    if train.target.texts is None:
        return np.zeros(len(train.starts), np.int64)
    encoded = train.target.texts.take(train.target_rows).combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(), np.int64)


def _divide_by_group(
    job: SeriesJob, train: WindowSplit, division: copies.Division | None = None
) -> tuple[WindowSplit, WindowSplit]:
    """Divide windows into training and validation by whole groups, or by whole stretches of windows that share rows.

    Raises:
        DataError: if there are fewer groups than parts, or a class is in groups for validation alone.
    """
    assert train.groups is not None
    column, strata = job.data.groups or "overlapping windows", _find_strata(train)
    group_numbers = np.unique(train.groups, return_inverse=True)[1].astype(np.int64)
    group_numbers = division.join_groups(group_numbers) if division else group_numbers
    if not job.data.groups and group_numbers.max() + 1 < groups.count_min_groups(job.data):
        raise DataError(
            f"data.train: all {len(group_numbers):,} windows of {train.path} overlap, directly or through others",
            f"{groups.count_min_groups(job.data)} recordings or more, since windows with the same rows are on one side only",
            "save windows of more recordings, or set data.validation to a file of another recording",
        )
    train_rows, validation_rows = groups.divide_by_group(strata, group_numbers, job.data, job.train.seed, "data.train")
    without_training = np.setdiff1d(strata[validation_rows], strata[train_rows])
    if len(without_training):
        assert train.target is not None
        encoded = train.target.texts.take(train.target_rows).combine_chunks().dictionary_encode()
        raise DataError(
            f"data.train: all windows of {list_names(encoded.dictionary.take(without_training).to_pylist())} are in groups for validation",
            "every class in two groups or more",
            "another train.seed, data.validation or data.groups",
        )
    note = groups.describe_division(column, group_numbers, train_rows, validation_rows, [])
    return train.take_rows(train_rows), replace(
        train.take_rows(validation_rows),
        notes=[note, *(division.describe(train_rows, validation_rows) if division else [])],
    )


def _read_new(
    path: Path, preprocessing: Mapping[str, Any], files: CsvFiles, budget: float, labelled: bool
) -> WindowSplit:
    arrays = preprocessing["form"] == "arrays"
    if (path.suffix.lower() == ".npz") != arrays:
        raise DataError(
            f"{path}: the network was trained on {'arrays' if arrays else 'a long table'}",
            "an .npz with `x`" if arrays else "a .csv, .tsv, .jsonl or .parquet",
            "use a file of that kind",
        )
    if arrays:
        axes = preprocessing.get("axes", "time-channels")
        split = window_split.read_stack(path, "data", preprocessing["classes"], budget, labelled=labelled, axes=axes)
        split.check_shape(preprocessing["length"], preprocessing["channels"])
        return split
    layout = timeline.layout_from_json(
        {name: preprocessing[name] for name in WindowLayout.__dataclass_fields__ if name in preprocessing}
    )
    return window_split.cut_all(timeline.read_timeline(path, "data", layout, budget, files, labelled=labelled), budget)
