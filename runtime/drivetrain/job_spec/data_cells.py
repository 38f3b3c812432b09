"""Checks the cells of a job's CSV files before training, without numpy, pyarrow or torch.

It finds what can be seen row by row: rows that are too short or too long, empty targets and texts, cells that are no
numbers in columns of numbers, and classes that training does not have. The reader of the data checks all of it again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from drivetrain.data.formats import csv_dialect, csv_layout, times
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.formats.number_marks import MISSING_NUMBERS
from drivetrain.data.images import image_paths
from drivetrain.data.source import BadSample, check_bad_samples
from drivetrain.data.tables import text_column
from drivetrain.errors import DataError
from drivetrain.job import Job, dot_key
from drivetrain.job.data import ImageClassificationData, TableFileData
from drivetrain.job.formatting import printable
from drivetrain.job.images import ImageJob
from drivetrain.job.series import SeriesJob
from drivetrain.job.tables import TableJob
from drivetrain.job.text import TextJob
from drivetrain.job_spec.cell_values import FeatureCells, is_infinite, is_number, read_value
from drivetrain.storage.remote_address import is_remote
from drivetrain.system import spelling

MAX_CHECKED_BYTES = 8 << 20
"""Largest file whose rows are checked; of a larger one only the header is, so that the command answers at once."""
MAX_LISTED = 5
"""Largest number of rows or classes that a message lists."""


@dataclass
class _ExpectedCells:
    """Requirements on the cells of a file's columns; of several names in an entry of `filled` one must have a cell."""

    filled: list[tuple[str, ...]] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    zero_or_one: list[str] = field(default_factory=list)
    """Columns of 0 and 1."""
    varying: list[str] = field(default_factory=list)
    """Columns of the training data that need two different numbers."""
    unique: tuple[str, ...] = ()
    """Columns of which no two rows have the same cells."""
    dates: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    """Columns of dates or numbers."""
    form: str | None = None
    """The form of the dates that the job declares; None to recognize it."""
    features: Callable[[str], bool] | None = None
    """Whether a column is a feature of which the cells decide the kind; None in a file that decides nothing."""


@dataclass
class _Columns:
    """Values collected from the columns of a file to compare its rows."""

    places: Mapping[str, int]
    """The position of each column in a row."""
    features: Mapping[str, FeatureCells]
    numbers: Mapping[str, set[float | str]]
    """Up to two different values of each column that must vary."""
    labels: Mapping[str, Counter[str]]
    """The number of rows of each class, by column."""
    dates: Mapping[str, dict[str, int]]
    """The row of each different cell of columns of dates without a declared form."""

    @classmethod
    def of(cls, names: Sequence[str], expected: _ExpectedCells) -> _Columns:
        """Return the columns of a file before its first row."""
        places = {name: position for position, name in enumerate(names)}
        return cls(
            places,
            {name: FeatureCells() for name in names if expected.features and expected.features(name)},
            {name: set() for name in expected.varying if name in places},
            {name: Counter() for name in expected.classes if name in places},
            {name: {} for name in expected.dates if name in places and expected.form is None},
        )

    def add(self, cells: Sequence[str], row: int) -> None:
        """Count the cells of a row."""
        for name, kind in self.features.items():
            kind.add(cells[self.places[name]].strip(), row)
        for name, values in self.numbers.items():
            if len(values) < 2 and (cell := cells[self.places[name]].strip()) not in MISSING_NUMBERS:
                values.add(cell if (value := read_value(cell)) is None else value)
        for name, labels in self.labels.items():
            if label := spelling.clean_category(cells[self.places[name]]).strip():
                labels[label] += 1
        for name, first_rows in self.dates.items():
            if (cell := cells[self.places[name]].strip()) not in MISSING_NUMBERS and len(
                first_rows
            ) < times.MAX_COMPARED_CELLS:
                first_rows.setdefault(cell, row)


def check(job: Job) -> list[str]:
    """Check the files; returns lines on what was checked and what was not.

    Raises:
        DataError: if a file cannot be used, or if more rows than `data.bad_samples` allows cannot.
    """
    if not isinstance(job.data, TableFileData):
        return []
    files = csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    report: list[str] = []
    checked: dict[str, Path] = {}
    classes_of: dict[str, set[str]] = {}
    for key, text in job.data_paths():
        path, label = job.resolve(text), dot_key(key)
        if reason := _explain_unchecked(job, key, text, path):
            report.append(f"{label}: {reason}")
            continue
        expected = _expected_cells(job)
        if key[-1] != "train":
            expected = replace(expected, features=None)
        count, notes = _check_file(job, path, job.locate_key(key), expected, files, classes_of)
        report += [f"{label}: checked {count:,} rows of {text}", *notes]
        checked[label] = path
        if key[-1] == "train" and not isinstance(job, SeriesJob) and job.train.batch > count:
            report.append(
                f"train.batch_size: {job.train.batch:,} is more than the {count:,} rows of {text}: one step per epoch"
            )
    if isinstance(job, SeriesJob) and job.data.time and len(checked) > 1 and find_spec("pyarrow"):
        from drivetrain.data.series import sampling

        report += sampling.check_files(job, checked)
    return report


def _explain_unchecked(job: Job, key: tuple[str, ...], text: str, path: Path) -> str:
    """Explain why the rows of a file are not checked here; empty if they are."""
    later = "checked when training starts"
    if (key, text) in job.list_unfetched():
        lack = "has no copy here" if is_remote(text) else "is not in the cache of the Hugging Face hub"
        fetch = f"`drivetrain fetch {job.document.name}` downloads it, and so does `train`"
        return f"{text} {lack}; {fetch}; what is in it is checked then"
    if path.suffix.lower() not in csv_dialect.SUFFIXES or not path.is_file():
        return f"{text} is there; what is in it is {later}"
    if (size := path.stat().st_size) > MAX_CHECKED_BYTES:
        return f"checked the header of {text}; its {size / 1e6:,.0f} MB are {later}"
    return ""


def _expected_cells(job: Job) -> _ExpectedCells:
    if isinstance(job, ImageJob):
        path, columns = (job.data.path_column,), list(job.data.label_column)
        if not isinstance(job.data, ImageClassificationData):
            return _ExpectedCells([path, *((name,) for name in columns)], numbers=columns, varying=columns)
        if len(columns) > 1:
            return _ExpectedCells([path, *((name,) for name in columns)], zero_or_one=columns, varying=columns)
        # A cell with several labels may be empty, and their separator is found only from all cells.
        return _ExpectedCells([path]) if job.data.several else _ExpectedCells([path, (columns[0],)], classes=columns)
    if isinstance(job, TextJob):
        return _ExpectedCells([job.data.text, tuple(job.data.labels)], classes=list(job.data.labels))
    if isinstance(job, TableJob):
        numbers = list(job.data.numeric or ())
        regression = job.task.endswith("regression")
        targets = list(job.data.target)
        classes = targets if not regression and len(targets) == 1 else []
        data = job.data
        role_columns = {*targets, *numbers, *(data.categorical or ()), *(data.ignore or ()), *data.dates, data.groups}

        def is_feature(name: str) -> bool:
            return name not in role_columns and (data.features is None or name in data.features)

        return _ExpectedCells(
            filled=[(name,) for name in targets],
            numbers=numbers + (targets if regression else []),
            classes=classes,
            zero_or_one=[] if regression or classes else targets,
            varying=[] if classes else targets,
            dates=list(data.dates),
            form=data.date_format,
            features=is_feature,
        )
    if isinstance(job, SeriesJob):
        names = tuple(name for name in (job.data.time, job.data.group) if name)
        return _ExpectedCells(
            filled=[(name,) for name in names],
            numbers=list(job.data.features or ()),
            times=[job.data.time] if job.data.time else [],
            unique=names,
            form=job.data.date_format,
        )
    return _ExpectedCells()


def _check_file(
    job: Job, path: Path, key: str, expected: _ExpectedCells, files: CsvFiles, classes_of: dict[str, set[str]]
) -> tuple[int, list[str]]:
    """Check the rows of a file; returns their number, and notes on those that are left out.

    `classes_of` gets the classes of the first file, with which those of later files are compared.
    """
    layout = csv_layout.find(path, key, files)
    csv_layout.check_quotes(path, key, layout.names)
    columns = _Columns.of(layout.names, expected)
    places = columns.places
    bad: dict[int, list[str]] = {}
    wrong_lengths: list[str] = []
    images: dict[int, str] = {}
    row_of_time: dict[tuple[str, ...], int] = {}
    count = 0
    for count, row in enumerate(_read_rows(path, layout), start=1):
        cells = ["" if cell.strip() in files.missing else cell for cell in row] if files.missing else row
        # The cells of such a row may belong to other columns, so nothing else is checked in it.
        if len(cells) != len(layout.names) + layout.blank:
            wrong_lengths.append(
                f"{csv_dialect.name_row(path, count)}: {len(cells)} cells, {printable(','.join(cells))}"
            )
            continue
        if reasons := list(_find_reasons(cells, places, expected)):
            bad[count] = reasons
        columns.add(cells, count)
        if isinstance(job, ImageJob) and job.data.path_column in places:
            images[count] = cells[places[job.data.path_column]].strip()
        # Rows that are left out do not count as repetitions.
        if expected.unique and count not in bad:
            _check_time(row_of_time, [cells[places[name]].strip() for name in expected.unique], count, path, key)
    _check_lengths(wrong_lengths, path, key, len(layout.names))
    digit_notes = [note for name, kind in columns.features.items() for note in kind.check(name, path)]
    if isinstance(job, TableJob | SeriesJob) and key.endswith("data.train"):
        digit_notes += [
            note for name, labels in columns.labels.items() for note in text_column.note_digit_classes(name, labels)
        ]
    for name, first_rows in columns.dates.items():
        _check_form(first_rows, f'{key}: column "{name}" of {path}', path)
    _check_varying(columns.numbers, count, path, key, classes_of)
    must_have_labels = isinstance(job, TextJob) and not key.endswith("data.test")
    _check_labels(columns.labels, count, path, key, classes_of, must_have_labels=must_have_labels)
    notes = _check_images(images, path, job.data.path_column, key, bad) if isinstance(job, ImageJob) else []
    bad_rows = [BadSample(f"{path.name} {csv_dialect.name_row(path, row)}", "; ".join(bad[row])) for row in sorted(bad)]
    assert isinstance(job.data, TableFileData)
    return count, [*digit_notes, *notes, *check_bad_samples(bad_rows, count, job.data.bad_samples, key)]


def _check_form(first_rows: Mapping[str, int], column: str, path: Path) -> None:
    """Check that the cells of a column of dates have one form; raises DataError if not."""
    recognized_form = times.find_form(list(first_rows), declared=True)
    if first_rows and recognized_form != times.ISO and not any(times.is_time(cell, times.ISO) for cell in first_rows):
        cell = next((cell for cell in first_rows if not times.is_time(cell, None)), next(iter(first_rows)))
        cell_text = f"{csv_dialect.name_row(path, first_rows[cell])} has `{printable(cell, 40)}`"
        times.check_form(recognized_form, column, cell_text)


def _check_varying(
    numbers: Mapping[str, set[float | str]], count: int, path: Path, key: str, classes_of: dict[str, set[str]]
) -> None:
    """Check that columns of numbers differ between the rows of the first file.

    Raises:
        DataError: for one that does not.
    """
    for name, values in numbers.items():
        if name not in classes_of and count > 1 and len(values) == 1 and isinstance(value := values.pop(), float):
            description = f"{key}: {name} is {value:g} in all rows of {path}"
            raise DataError(description, "a number that differs between rows", f"remove {name}, or add rows")
        classes_of.setdefault(name, set())


def _check_labels(
    labels_of: Mapping[str, Counter[str]],
    count: int,
    path: Path,
    key: str,
    classes_of: dict[str, set[str]],
    *,
    must_have_labels: bool,
) -> None:
    """Check the classes of a file.

    Raises:
        DataError: if there are too few in the first file, or other ones in a later file.
    """
    for name, labels in labels_of.items():
        if count and not labels and must_have_labels:
            raise DataError(
                f"{key}: none of the {count:,} texts of {path} has a label in {name}",
                "some labels of each column on both sides",
                "add labels, or remove the column",
            )
        column = f'{key}: column "{name}" of {path}'
        if name not in classes_of and len(labels) == 1:
            raise DataError(
                f"{column} has 1 class: {next(iter(labels))}", "two classes or more", "add rows of another class"
            )
        _check_classes(labels, classes_of.setdefault(name, set(labels)), column)


def _check_images(
    cells: Mapping[int, str], manifest: Path, column: str, key: str, bad: dict[int, list[str]]
) -> list[str]:
    """Check that the images of a manifest exist; adds rows without one to `bad`, returns notes on how paths are read."""
    paths, notes = image_paths.find_paths(manifest.parent, list(cells.values()), column, key)
    for row, path in zip(cells, paths, strict=True):
        if path and not os.path.lexists(manifest.parent / path):
            bad.setdefault(row, []).append(f"{path} is not there")
    return notes


def _read_rows(path: Path, layout: csv_layout.CsvLayout) -> Iterator[list[str]]:
    """Yield the rows below the header, without empty ones, and without those of only separators at the end."""
    empty: list[list[str]] = []
    for cells in islice(layout.read_rows(path), 1, None):
        empty.append(cells)
        if any(map(str.strip, cells)):
            yield from empty
            empty = []


def _find_reasons(cells: list[str], places: Mapping[str, int], expected: _ExpectedCells) -> Iterator[str]:
    for names in expected.filled:
        values = {name: cells[places[name]].strip() for name in names if name in places}
        if all(not cell or (name in expected.numbers and cell in MISSING_NUMBERS) for name, cell in values.items()):
            yield f"{' and '.join(names)} is empty"

    def read_cell(name: str) -> str:
        return cells[places[name]].strip() if name in places else ""

    for name in expected.numbers:
        cell = read_cell(name)
        if not is_number(cell):
            yield f"{name} is `{printable(cell, 40)}`, not a number"
        elif is_infinite(cell):
            yield f"{name} is infinite"
    for name in expected.zero_or_one:
        cell = read_cell(name)
        if cell and read_value(cell) not in (0, 1) and (read_value(cell) is not None or not is_number(cell)):
            yield f"{name} is `{printable(cell, 40)}`, not 0 or 1"
    for name in (*expected.dates, *expected.times):
        cell = read_cell(name)
        is_empty = expected.form is None and cell in MISSING_NUMBERS
        if not is_empty and not times.is_time(cell, expected.form) and not (name in expected.times and is_number(cell)):
            yield f"{name} is `{printable(cell, 40)}`, no {'date' if name in expected.dates else 'time'}"


def _check_time(row_of_time: dict[tuple[str, ...], int], cells: list[str], row: int, path: Path, key: str) -> None:
    """Record the time, and the series, of a row; raises DataError if an earlier row has both."""
    first = row_of_time.setdefault(tuple(cells), row)
    if first != row and cells[0] not in MISSING_NUMBERS:
        raise DataError(
            f"{key}: {csv_dialect.name_row(path, first)} and {csv_dialect.name_row(path, row)} of {path} have the same time "
            f"`{printable(cells[0], 40)}`{' in one series' if len(cells) > 1 else ''}",
            "every time only once per series",
            "remove duplicates, or set data.group to the column of the series; an hour that the clocks repeat needs UTC",
        )


def _check_lengths(wrong_lengths: list[str], path: Path, key: str, columns: int) -> None:
    if wrong_lengths:
        remainder = [f"and {len(wrong_lengths) - MAX_LISTED:,} more"] if len(wrong_lengths) > MAX_LISTED else []
        head = f"{key}: {path} has {columns} columns; rows of another length: {len(wrong_lengths):,}"
        raise DataError(
            "\n    ".join([head, *wrong_lengths[:MAX_LISTED], *remainder]),
            "as many cells in each row as in the header",
            "put quotes around cells that contain a separator, and add missing cells",
        )


def _check_classes(labels: Counter[str], classes: set[str], column: str) -> None:
    if unknown := sorted(set(labels) - classes):
        listed_labels = ", ".join(f'"{label}" ({labels[label]:,})' for label in unknown[:MAX_LISTED])
        raise DataError(
            f"{column}: classes that are not in the training data: {listed_labels}",
            f"the {len(classes)} classes of the training data: {', '.join(sorted(classes)[:10])}",
            "add samples of these classes to the training data, or remove them here",
        )
