"""Loads the data of a series job: windows of a long table, or arrays of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Head, Preprocessing, Split, Targets, keep_unchanged
from drivetrain.data.formats import column_values, npz_file
from drivetrain.data.labels import note_similar_names
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Division, Groups, Partition
from drivetrain.data.reading import Heads, Preprocessor, Reader
from drivetrain.data.scales import Scale, collect_fields, scales_from_json
from drivetrain.data.source import BadSample, Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import text_column
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError, SpecError
from drivetrain.job.values import parse_fold
from drivetrain.tasks.series import overlap, sampling, timeline, windows
from drivetrain.tasks.series.job import SeriesJob
from drivetrain.tasks.series.timeline import WindowLayout
from drivetrain.tasks.series.windows import SeriesSplit, WindowTable

if TYPE_CHECKING:
    import torch

FORM = "an .npz with `x` of shape (N, T, channels), numbers, and `y` of shape (N,) or (N, K)"
WRITE = "write it with numpy.savez_compressed; series of different lengths need a table with one row per time step"


class SeriesReader(Reader[WindowTable]):
    """Reads the windows of a series job."""

    job: SeriesJob

    def read(self, source: Source) -> WindowTable:
        """Read all windows of the training file."""
        table = self._read_arrays(source) if self.job.data.arrays else self._read_long(source)
        if self.earlier:
            _check_channels(self.job, self.earlier, table)
        return table

    def _read_long(self, source: Source) -> WindowTable:
        data = self.job.data
        assert data.time is not None
        assert data.window is not None
        layout = WindowLayout(
            data.time,
            data.features or tuple(self.recorded.preprocessing.get("features", ()) if self.recorded else ()),
            data.label or (),
            not self.job.PREDICTS_NUMBERS,
            data.group,
            data.window,
            data.step,
            data.max_gap,
            data.date_format,
        )
        line = timeline.read_timeline(source, layout, data.groups)
        # Without groups, validation is the end of the time.
        if data.groups or isinstance(data.validation, str):
            table = windows.cut_all(line)
        else:
            table = windows.cut_before_and_after(line, data.validation)
        stored = table.stored | sampling.measure(line.order, line.layout.window)
        return replace(table, stored=stored, group_column=data.groups or "")

    def _read_arrays(self, source: Source) -> WindowTable:
        """Read windows of arrays; windows that share rows form a group, if validation is held out of them."""
        data, classes = self.job.data, not self.job.PREDICTS_NUMBERS
        if isinstance(data.validation, str):
            return read_windows(source, classes=classes, axes=data.axes)
        table = read_windows(source, classes=classes, axes=data.axes, groups=data.groups)
        if table.groups is not None:
            return replace(table, group_column=data.groups or "")
        stretches = overlap.number_stretches(table.windows())
        if stretches.max() + 1 == len(stretches):
            return table
        return replace(table, groups=stretches, group_column="overlapping windows")

    def digest(self, table: WindowTable) -> tuple[Contents, bool] | None:
        """Digest the windows of arrays; the rows of a long table differ in time."""
        return None if table.file_rows is not None else (copies.digest_rows(table.windows()), False)

    def hold_out(self, table: WindowTable, division: Division | None) -> Partition:
        """Hold out the end of the time, whole groups, or windows of each class, if no class is lost to validation."""
        if table.is_early is not None:
            return Partition(*windows.divide_in_time(table), [])
        if table.groups is not None and not self.job.data.groups:
            _check_recordings(self.job, table, division.join_groups(table.groups) if division else table.groups)
        partition = super().hold_out(table, division)
        if partition.lost_classes:
            raise DataError(
                f"all windows of {list_names(partition.lost_classes)} are in groups for validation",
                "every class in two groups or more",
                "another train.seed, data.validation or data.groups",
                key="data.train",
            )
        return partition

    def build_head(self, name: str, table: WindowTable, training: Ids) -> Head:
        """Build the head from the training windows."""
        return target_columns.build_head(table.targets[name], training, training, table.source.key)

    def fit(self, table: WindowTable, training: Ids, heads: Heads) -> tuple[FittedSeries, list[str]]:
        """Fit the scale of each channel to the training rows, or take the recorded one; also returns notes."""
        fitted_scales = windows.fit_scales(table.list_fitting_rows(training))
        scales = scales_from_json(self.recorded.preprocessing) if self.recorded else fitted_scales
        stored = {"kind": "series", "length": table.length, "channels": len(scales), **collect_fields(scales)}
        fitted = FittedSeries(table.stored | stored, scales)
        spread, constant = list[float](), list[str]()
        for name, own, scale in zip(fitted.channel_names, fitted_scales, scales, strict=True):
            is_constant = own.low == own.high
            constant += [name] if is_constant else []
            spread.append(0.0 if is_constant else own.std / scale.std)
        if not self.tables_only:
            from drivetrain.tasks.series import augment

            fitted.augment = augment.build_preprocessing(self.job.data.augment, self.job.train.seed, tuple(spread))
        if not constant:
            return fitted, []
        return fitted, [f"constant in the training rows, so centered but not scaled: {', '.join(constant)}"]

    def note_columns(self, table: WindowTable, training: Ids, heads: Heads) -> list[str]:
        """Return notes on similar classes and on classes that are numbers."""
        name, classes = table.targets[""].names[0], heads[""].classes
        return [
            *note_similar_names(name, classes),
            *text_column.note_digit_classes(name, dict.fromkeys(classes, 1)),
        ]

    def note_shared(self, train: WindowTable, split: Split, other: WindowTable, validation: Split) -> list[str]:
        """Return notes on validation windows that are also in the training data, or share rows with it."""
        notes = super().note_shared(train, split, other, validation)
        if train.file_rows is None:
            notes += overlap.describe_shared(train.windows(), other.windows())
        return notes

    def describe_samples(self, table: WindowTable, heads: Heads) -> str:
        """Name the length of a window."""
        return f" of {table.length} rows"


def _check_channels(job: SeriesJob, earlier: Mapping[str, Any], table: WindowTable) -> None:
    """Check that the channels are the channels of the earlier run.

    Raises:
        SpecError: if they differ in names, order or number.
    """
    trained_features, new_features = earlier.get("features"), table.stored.get("features")
    if trained_features and new_features and list(trained_features) != list(new_features):
        description = f"is {', '.join(new_features)}, and the earlier run was trained on {', '.join(trained_features)}"
        problem = job.problem(
            ("data", "features"), description, "the same columns in the same order", "leave features out"
        )
        raise SpecError([problem])
    if table.shape[1] != earlier["channels"]:
        description = f"takes {earlier['channels']} channels, and data.train has {table.shape[1]}"
        key = job.model_key("name")
        raise job.spec_error(key, description, "data with the same channels", "use another run, or a new network")


def _check_recordings(job: SeriesJob, table: WindowTable, members: Groups) -> None:
    """Check that there are enough groups of windows that overlap."""
    least = parse_fold(job.data.fold)[1] if job.data.fold else 2
    if members.max() + 1 < least:
        raise DataError(
            f"all {len(members):,} windows of {table.source.path} overlap, directly or through others",
            f"{least} recordings or more, since windows with the same rows are on one side only",
            "save windows of more recordings, or set data.validation to a file of another recording",
            key="data.train",
        )


@dataclass
class FittedSeries(Preprocessor[WindowTable]):
    """Columns and window of a series, with the scales of the channels."""

    stored: dict[str, Any]
    scales: Sequence[Scale]
    augment: Preprocessing = keep_unchanged

    @property
    def prepare(self) -> Preprocessing:
        """Augmentation on the device, in training only."""
        return self.augment

    @property
    def channel_names(self) -> list[str]:
        """Names of the features, or numbers for arrays."""
        return list(self.stored.get("features") or (f"channel {channel}" for channel in range(len(self.scales))))

    def read(self, source: Source) -> WindowTable:
        """Read all windows of a file in the same way as the training windows."""
        arrays = self.stored["form"] == "arrays"
        if (source.path.suffix.lower() == ".npz") != arrays:
            raise DataError(
                f"{source.path}: the network was trained on {'arrays' if arrays else 'a long table'}",
                "an .npz with `x`" if arrays else "a .csv, .tsv, .jsonl or .parquet",
                "use a file of that kind",
            )
        if arrays:
            axes = self.stored.get("axes", "time-channels")
            table = read_windows(source, classes=self.stored["classes"], axes=axes)
            table.check_shape(self.stored["length"], self.stored["channels"])
            return table
        line = timeline.read_timeline(source, timeline.layout_from_json(self.stored))
        layout = line.layout
        line.notes.extend(sampling.compare(line.order, source, layout.time, layout.window, self.stored))
        return windows.cut_all(line)

    def build_split(
        self, tables: Sequence[WindowTable], rows: Sequence[Ids], targets: Targets
    ) -> tuple[Split, list[str]]:
        """Scale the rows of each table; splits of one table share them."""
        import torch

        scaled = [self._scale(table) for table in tables]
        offsets = np.cumsum([0, *map(len, scaled)])[:-1].tolist()
        chosen = list(zip(tables, rows, offsets, strict=True))
        split = SeriesSplit(
            values=torch.cat(scaled) if len(scaled) > 1 else scaled[0],
            starts=np.concatenate([table.starts[taken] + offset for table, taken, offset in chosen]),
            length=tables[0].length,
            targets=targets,
            numbers=np.concatenate([table.numbers[taken] for table, taken, _ in chosen]),
            files=tuple(table.source.path.name for table in tables),
            title_format=tables[0].title_format,
            file=np.repeat(np.arange(len(tables)), [len(taken) for taken in rows]),
        )
        return split, []

    def _scale(self, table: WindowTable) -> torch.Tensor:
        if table.scaled is None:
            table.scaled = windows.scale_channels(table.values, self.scales)
        return table.scaled

    def to_json(self) -> dict[str, Any]:
        """Return columns, window and scales as plain JSON values."""
        return self.stored

    def compare(self, table: WindowTable, rows: Ids) -> list[str]:
        """Return notes on values of another file that are far from the training values."""
        if table.source.key == "data.train":
            return []
        notes = list[str]()
        for column, name, scale in zip(table.values.T, self.channel_names, self.scales, strict=True):
            notes += scale.note_distant(name, column.astype(np.float64), table.name_row)
        return [f"{table.source.path.name}: {note}" for note in notes]

    def note_codes(self, table: WindowTable, *, is_new: bool) -> list[str]:
        """Return notes by channel on values that are codes."""
        return table.note_codes(self.scales, self.channel_names, is_new=is_new)


def restore(preprocessing: Mapping[str, Any]) -> FittedSeries:
    """Restore the preprocessing of a trained model."""
    return FittedSeries(dict(preprocessing), scales_from_json(preprocessing))


def read_windows(source: Source, *, classes: bool, axes: str = "auto", groups: str | None = None) -> WindowTable:
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
    describe = lambda row, reason: BadSample(f"{path.name}[{row}]", reason)  # noqa: E731
    rows, notes = source.find_usable(reasons, len(values), "window", describe)
    length, channels = values.shape[1:]
    return WindowTable(
        source=source,
        usable=np.arange(len(rows), dtype=np.int64),
        targets={"": target.take(rows)} if target else {},
        notes=[*axis_notes, *notes],
        groups=None if window_groups is None else np.unique(window_groups[rows], return_inverse=True)[1],
        values=values.reshape(-1, channels),
        starts=rows * length,
        length=length,
        numbers=rows,
        title_format="{file}[{number}]",
        stored={"form": "arrays", "classes": classes} | ({} if order == "time-channels" else {"axes": order}),
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
