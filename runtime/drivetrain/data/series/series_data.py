"""Loads the data of a series job: windows of a long table, or arrays of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, target_columns
from drivetrain.data.dataset import Dataset, Head, InputRecord, NewSamples, keep_unchanged
from drivetrain.data.formats import column_values, csv_dialect, npz_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.labels import note_similar_names
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Division, Groups, hold_out, hold_out_groups
from drivetrain.data.scales import Scale, collect_fields, scales_from_json
from drivetrain.data.series import overlap, sampling, timeline, windows
from drivetrain.data.series.timeline import Timeline, WindowLayout
from drivetrain.data.series.windows import SeriesSplit, WindowSplit
from drivetrain.data.source import BadSample, Source
from drivetrain.data.tables import text_column
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.errors import DataError, SpecError
from drivetrain.job.series import SeriesJob
from drivetrain.job.values import parse_fold

FORM = "an .npz with `x` of shape (N, T, channels), numbers, and `y` of shape (N,) or (N, K)"
WRITE = "write it with numpy.savez_compressed; series of different lengths need a table with one row per time step"


def load(job: SeriesJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the windows of a job; the scale is taken from `recorded` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    from drivetrain.data.series import augment

    data = job.data
    files = files or csv_dialect.of_job(job.csv_settings(), {}, data.missing)
    train_part, validation_part, stored, head = _read_parts(job, recorded, files)
    target = train_part.target
    assert target is not None
    fitted_scales = windows.fit_scales(train_part.fitting_rows)
    scales = scales_from_json(recorded.preprocessing) if recorded else fitted_scales
    values = windows.scale_channels(train_part.values, scales)
    is_one_file = validation_part.values is train_part.values
    train = train_part.split(values, head)
    scored_part, code_notes = validation_part.keep_scored(head)
    validation = scored_part.split(
        values if is_one_file else windows.scale_channels(validation_part.values, scales), head
    )
    notes = [
        f"{len(train):,} training and {len(validation):,} validation windows of {train_part.length} rows",
        *note_similar_names(target.names[0], head.classes),
        *text_column.note_digit_classes(target.names[0], dict.fromkeys(head.classes, 1)),
        *train_part.notes,
        *validation_part.notes,
        *code_notes,
    ]
    if isinstance(data.validation, str):
        notes += copies.note_shared(train.contents(), validation.contents(), validation.title, "validation windows")
    names = _name_channels(stored, len(scales))
    if constant := [name for name, scale in zip(names, fitted_scales, strict=True) if scale.low == scale.high]:
        notes.append(f"constant in the training rows, so centered but not scaled: {', '.join(constant)}")
    notes += train_part.note_numbers(scales, names, is_new=False)
    notes += train_part.note_target_codes(head, is_new=False)
    if not is_one_file:
        notes += _note_new(validation_part, scales, names, head)
    stored |= {"kind": "series", "length": train_part.length, "channels": len(scales), **collect_fields(scales)}
    spread = tuple(
        0.0 if fitted.low == fitted.high else fitted.std / scale.std
        for fitted, scale in zip(fitted_scales, scales, strict=True)
    )
    prepare = augment.build_preprocessing(data.augment, job.train.seed, spread)
    return Dataset(train, validation, {"": head}, stored, prepare, notes=notes)


def _read_parts(
    job: SeriesJob, recorded: InputRecord | None, files: CsvFiles
) -> tuple[WindowSplit, WindowSplit, dict[str, Any], Head]:
    source = Source.of_job(job, "train", files)
    train, validation, stored = (_read_arrays if job.data.arrays else _read_long)(job, source, recorded)
    if recorded and not recorded.same_data:
        _check_channels(job, recorded, stored, train.shape[1])
    assert train.target is not None
    head = target_columns.choose_head(train.target, train.target_rows, train.target_rows, source.key, recorded)
    return train, validation, stored, head


def check(job: SeriesJob, recorded: InputRecord | None, files: CsvFiles) -> tuple[int, list[str]]:
    """Read the windows of a job as `load` does, without torch; returns the number of training windows, and notes."""
    train, validation, stored, head = _read_parts(job, recorded, files)
    parts = [validation]
    if job.data.test:
        parts.append(_read_new(Source.of_job(job, "test", files), stored))
    for part in parts:
        assert part.target is not None
        target_columns.encode(part.target, part.target_rows, head, part.source.key)
    return len(train.starts), [note for part in (train, *parts) for note in part.notes]


def read(sources: Sequence[Source], preprocessing: Mapping[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new windows of long tables or of arrays, as in training; raises as `load_data.load_new` does."""
    scales = scales_from_json(preprocessing)
    splits: list[SeriesSplit] = []
    notes: list[str] = []
    for source in sources:
        part = _read_new(source, preprocessing)
        head = heads[""] if source.labelled else None
        splits.append(part.split(windows.scale_channels(part.values, scales), head))
        notes += [*part.notes, *_note_new(part, scales, _name_channels(preprocessing, len(scales)), head)]
    return NewSamples(windows.join_splits(splits), keep_unchanged, notes)


def _check_channels(job: SeriesJob, recorded: InputRecord, stored: Mapping[str, Any], channels: int) -> None:
    """Check that the channels are the channels of the earlier run.

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
        raise job.spec_error(key, description, "data with the same channels", "use another run, or a new network")


def _name_channels(stored: Mapping[str, Any], count: int) -> list[str]:
    return list(stored.get("features") or (f"channel {channel}" for channel in range(count)))


def _note_new(part: WindowSplit, scales: Sequence[Scale], names: Sequence[str], head: Head | None) -> list[str]:
    """Return notes on the numbers of a file other than the training file."""
    notes = part.note_numbers(scales, names, is_new=True) + (part.note_target_codes(head, is_new=True) if head else [])
    return [f"{part.source.path.name}: {note}" for note in notes]


def _read_long(
    job: SeriesJob, source: Source, recorded: InputRecord | None
) -> tuple[WindowSplit, WindowSplit, dict[str, Any]]:
    """Read training and validation windows from two long tables, or from one that is split by groups or in time.

    Returns:
        Training windows, validation windows, and the values on columns that the preprocessing stores.
    """
    data = job.data
    assert data.time is not None
    assert data.window is not None
    layout = WindowLayout(
        data.time,
        data.features or tuple(recorded.preprocessing.get("features", ()) if recorded else ()),
        data.label or (),
        not job.PREDICTS_NUMBERS,
        data.group,
        data.window,
        data.step,
        data.max_gap,
        data.date_format,
    )
    line = timeline.read_timeline(source, layout, data.groups)
    stored = {"form": "long", **line.layout.to_json(), **sampling.measure(line.order, line.layout.window)}
    if isinstance(data.validation, str):
        validation_line = timeline.read_timeline(Source.of_job(job, "validation", source.files), line.layout)
        line.notes.extend(_compare_steps(validation_line, stored))
        return windows.cut_all(line), windows.cut_all(validation_line), stored
    if data.groups:
        return *_divide_by_group(job, windows.cut_all(line)), stored
    return *windows.cut_before_and_after(line, data.validation), stored


def _read_arrays(
    job: SeriesJob, source: Source, recorded: InputRecord | None
) -> tuple[WindowSplit, WindowSplit, dict[str, Any]]:
    """Read training and validation windows of arrays, from two files or from one file.

    One file is split by groups, by class or at random; windows that share rows are on the same side.

    Returns:
        Training windows, validation windows, and the values on axes and split that the preprocessing stores.
    """
    data, classes = job.data, not job.PREDICTS_NUMBERS
    groups = None if isinstance(data.validation, str) else data.groups
    train = read_windows(source, classes=classes, axes=data.axes, groups=groups)
    stored: dict[str, Any] = {"form": "arrays", "classes": classes}
    if train.axes != "time-channels":
        stored["axes"] = train.axes
    if isinstance(data.validation, str):
        validation_source = Source.of_job(job, "validation", source.files)
        validation_part = read_windows(validation_source, classes=classes, axes=train.axes)
        validation_part.check_shape(*train.shape)
        validation_part.notes.extend(overlap.describe_shared(train.windows(), validation_part.windows()))
        return train, validation_part, stored
    division = Division(copies.digest_rows(train.windows()), "windows", recorded)
    if train.groups is None:
        stretches = overlap.number_stretches(train.windows())
        if stretches.max() + 1 < len(stretches):
            train = replace(train, groups=stretches)
    if train.groups is not None:
        return *_divide_by_group(job, train, division), stored | division.to_json()
    partition = hold_out(job, _find_strata(train), division)
    train.notes.extend(partition.notes)
    validation = replace(train.take_rows(partition.validation), notes=[])
    return train.take_rows(partition.training), validation, stored | division.to_json()


def _find_strata(part: WindowSplit) -> Strata:
    assert part.target is not None
    return target_columns.find_strata(part.target, part.target_rows)


def _compare_steps(line: Timeline, preprocessing: Mapping[str, Any]) -> list[str]:
    layout = line.layout
    return sampling.compare(line.order, line.source, layout.time, layout.window, preprocessing)


def _divide_by_group(
    job: SeriesJob, train: WindowSplit, division: Division | None = None
) -> tuple[WindowSplit, WindowSplit]:
    """Divide windows into training and validation by whole groups, or by whole stretches of windows that share rows.

    Raises:
        DataError: if there are fewer groups than parts, or a class occurs only in groups for validation.
    """
    assert train.groups is not None
    members = np.unique(train.groups, return_inverse=True)[1].astype(np.int64)
    members = division.join_groups(members) if division else members
    least = parse_fold(job.data.fold)[1] if job.data.fold else 2
    if not job.data.groups and members.max() + 1 < least:
        raise DataError(
            f"all {len(members):,} windows of {train.source.path} overlap, directly or through others",
            f"{least} recordings or more, since windows with the same rows are on one side only",
            "save windows of more recordings, or set data.validation to a file of another recording",
            key="data.train",
        )
    column = job.data.groups or "overlapping windows"
    partition = hold_out_groups(job, _find_strata(train), column, members, division)
    if partition.lost_classes:
        raise DataError(
            f"all windows of {list_names(partition.lost_classes)} are in groups for validation",
            "every class in two groups or more",
            "another train.seed, data.validation or data.groups",
            key="data.train",
        )
    return train.take_rows(partition.training), replace(train.take_rows(partition.validation), notes=partition.notes)


def _read_new(source: Source, preprocessing: Mapping[str, Any]) -> WindowSplit:
    """Read all windows of a file in the same way as the training windows."""
    arrays = preprocessing["form"] == "arrays"
    if (source.path.suffix.lower() == ".npz") != arrays:
        raise DataError(
            f"{source.path}: the network was trained on {'arrays' if arrays else 'a long table'}",
            "an .npz with `x`" if arrays else "a .csv, .tsv, .jsonl or .parquet",
            "use a file of that kind",
        )
    if arrays:
        axes = preprocessing.get("axes", "time-channels")
        split = read_windows(source, classes=preprocessing["classes"], axes=axes)
        split.check_shape(preprocessing["length"], preprocessing["channels"])
        return split
    line = timeline.read_timeline(source, timeline.layout_from_json(preprocessing))
    line.notes.extend(_compare_steps(line, preprocessing))
    return windows.cut_all(line)


def read_windows(source: Source, *, classes: bool, axes: str = "auto", groups: str | None = None) -> WindowSplit:
    """Read and check the arrays of a file; `axes` is time-channels, channels-time or auto, `groups` names an array.

    Raises:
        DataError: if the file does not hold these arrays, or no window can be used.
    """
    path, key = source.path, source.key
    names = ["x", *(["y"] if source.labelled else []), *([groups] if groups else [])]
    arrays = npz_file.read_arrays(path, key, names, FORM, "numpy.savez(..., x=x, y=y)", WRITE)
    values, order, axis_notes = _order_axes(npz_file.empty_cells(arrays["x"], source.files.missing), axes, path, key)
    window_groups = _number_groups(arrays[groups], len(values), groups, path, key) if groups else None
    target = None
    if source.labelled:
        y = arrays["y"] if classes else npz_file.empty_cells(arrays["y"], source.files.missing)
        target = _read_targets(y, len(values), classes, path, key)
    reasons = dict.fromkeys(np.flatnonzero(~_find_finite(values)).tolist(), "NaN or infinity")
    reasons |= target.bad if target else {}
    unusable = [BadSample(f"{path.name}[{row}]", reasons[row]) for row in sorted(reasons)]
    notes = source.check_bad(unusable, len(values))
    is_usable = np.ones(len(values), np.bool_)
    is_usable[list(reasons)] = False
    if not is_usable.any():
        raise DataError(f"no window of {path} is usable; {unusable[0]}", "one window or more", "fix the file", key=key)
    rows, (length, channels) = np.flatnonzero(is_usable).astype(np.int64), values.shape[1:]
    return WindowSplit(
        source,
        values.reshape(-1, channels),
        rows * length,
        length,
        np.repeat(is_usable, length),
        target,
        target_rows=rows,
        numbers=rows,
        title_format="{file}[{number}]",
        notes=[*axis_notes, *notes],
        groups=None if window_groups is None else window_groups[rows],
        axes=order,
    )


def _number_groups(array: npt.NDArray[Any], windows: int, name: str, path: Path, key: str) -> Groups:
    if array.shape != (windows,):
        raise DataError(
            f"`{name}` of {path} has shape {array.shape}, and `x` has {windows:,} windows",
            "one group for each window: shape (N,)",
            "write the file again with both of one length",
            key=key,
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _order_axes(
    x: npt.NDArray[np.generic], axes: str, path: Path, key: str
) -> tuple[npt.NDArray[np.generic], str, list[str]]:
    """Convert windows to (N, T, channels); also returns the original order of their axes, and notes if it differs."""
    if x.ndim == 2:
        x = x[:, :, None]
    if x.ndim != 3 or 0 in x.shape or x.dtype.kind not in "iufb":
        raise DataError(f"`x` of {path} is {x.dtype} of shape {x.shape}", FORM, "reshape or convert it", key=key)
    order, notes = npz_file.find_axis_order(x.shape, path, key) if axes == "auto" else axes, []
    if order == "channels-time":
        x = x.transpose(0, 2, 1)
        notes = [
            f"{path.name}: `x` is read as (N, channels, T): windows of {x.shape[1]:,} rows of {x.shape[2]} channels"
        ]
    # float64 and large integers stay exact; smaller types become float32.
    kind = np.float32 if x.dtype.kind in "bu" or x.dtype.itemsize < 4 else x.dtype
    return np.ascontiguousarray(x, kind), order, notes


def _read_targets(y: npt.NDArray[Any], windows: int, classes: bool, path: Path, key: str) -> TargetColumn:
    import pyarrow

    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] == 0 or y.dtype.kind not in ("iufbUS" if classes else "iufb"):
        raise DataError(f"`y` of {path} is {y.dtype} of shape {y.shape}", FORM, "reshape or convert it", key=key)
    if len(y) != windows:
        raise DataError(
            f"{path} has {windows:,} windows in `x` and {len(y):,} targets in `y`",
            "one target for each window",
            "write the file again with both of one length",
            key=key,
        )
    if classes and y.shape[1] > 1:
        raise DataError(
            f"`y` of {path} has shape {y.shape}",
            "one class for each window: shape (N,)",
            "save the number of the class: y.argmax(axis=1)",
            key=key,
        )
    names = [f"y[{index}]" for index in range(y.shape[1])] if y.shape[1] > 1 else ["y"]
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "backslashreplace")
    table = pyarrow.table({name: pyarrow.array(column) for name, column in zip(names, y.T, strict=True)})
    return target_columns.read_targets(table, names, classes=classes, option=key, source=str(path))


def _find_finite(values: npt.NDArray[np.generic]) -> column_values.Mask:
    """Find a mask (N,) of the windows whose numbers are all finite and not too large."""
    if values.dtype.kind != "f":
        return np.ones(len(values), np.bool_)
    # A window's sum is finite only if all its numbers are; this avoids a boolean array as large as `x`.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(values.sum(axis=(1, 2), dtype=np.float64))
    for row in np.flatnonzero(~is_finite):
        is_finite[row] = bool((np.abs(values[row]) <= column_values.LARGEST).all())
    return np.asarray(is_finite)
