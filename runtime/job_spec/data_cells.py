"""Checks the cells of a job's CSV files before training, without numpy, pyarrow or torch.

It finds what can be told row by row: rows that are too short or too long, empty targets and texts, cells that are no
numbers in columns of numbers, and classes that training does not have. The reader of the data checks all of it again.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from runtime.data import bad_samples
from runtime.data.bad_samples import BadSample
from runtime.data.formats import csv_dialect, csv_layout, csv_quotes, row_lines
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.formats.missing_cells import NOTHING
from runtime.data.formats.number_marks import UNITS
from runtime.data.images import image_paths
from runtime.data.tables import date_texts, text_column
from runtime.errors import DataError
from runtime.job import Job, dotted
from runtime.job.data import ImageClassificationData, TableFileData
from runtime.job.formatting import printable
from runtime.job.hub_address import is_on_hub
from runtime.job.images import ImageJob
from runtime.job.series import SeriesJob
from runtime.job.tables import TableJob
from runtime.job.text import TextJob
from runtime.storage.remote_address import is_remote
from runtime.system import spelling

LARGEST = 8 << 20
"""Bytes; of a larger file only the header is checked, so that the command answers at once."""
SHOWN = 5
ODD = 2
"""Different texts among numbers that are a row of units or of totals; more can be marks of missing values."""
_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d|.{12,}?)(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)
_SIGN = "[-+\u2212\ufe63\uff0d]"
_UNIT = (
    rf"\s*[%€$£]|\s*°\S{{0,4}}|\s+[^\d\s.,;:()'\"+\-][^,;:()]{{0,15}}|(?-i:{'|'.join(map(re.escape, sorted(UNITS)))})"
)
_NUMBER = re.compile(
    rf"\(?\s*(?:{_SIGN}|\u2013)?\s*[%€$£]?{_SIGN}?[\d.,'\s\u2019]*\d[\d.,'\s\u2019]*(?:e{_SIGN}?\d+)?(?:{_UNIT})?\)?-?"
    "|[-+]?inf(?:inity)?",
    re.I,
)
_TRUTH = {"true", "false"}


def _none(name: str) -> bool:
    return False


@dataclass
class _Wanted:
    """What the columns of a file must hold; several names in one entry of `filled` are alternatives."""

    filled: list[tuple[str, ...]] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    truths: list[str] = field(default_factory=list)
    """Columns of 0 and 1."""
    varied: list[str] = field(default_factory=list)
    """Columns of the training data that need two different numbers."""
    unique: tuple[str, ...] = ()
    """Columns whose cells together are in one row alone."""
    dates: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    """Columns of dates or numbers."""
    form: str | None = None
    """Of the dates, as in strptime; None if they are written as 2024-05-31."""
    features: Callable[[str], bool] = _none
    """Whether a column is a feature whose kind its cells decide."""


@dataclass
class _Cells:
    """What the cells of a column hold, of which it depends whether it is a feature."""

    filled: int = 0
    numbers: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    """The row in which each different text is first, numbers left out."""

    def add(self, cell: str, row: int) -> None:
        """Count a cell."""
        if cell in NOTHING:
            return
        self.filled += 1
        if _is_number(cell) and not date_texts.is_date(cell):
            self.numbers += 1
        else:
            self.texts.setdefault(cell, row)

    def check(self, name: str, path: Path) -> None:
        """Check that the column can be a feature, as training does.

        Raises:
            DataError: if it cannot.
        """
        if not self.texts:
            return
        lettered = all(any(map(str.isalpha, text)) and not any(map(str.isdigit, text)) for text in self.texts)
        if lettered and len(self.texts) <= ODD and self.numbers >= text_column.MOSTLY * self.filled:
            text, row = next(iter(self.texts.items()))
            wrong = self.filled - self.numbers
            raise text_column.spoilt(
                name, str(path), wrong, f"{row_lines.place(path, row)} has `{printable(text, 40)}`"
            )
        if self.numbers:
            return
        if all(map(_is_iso, self.texts)):
            raise text_column.dates(name, str(path), next(iter(self.texts)))
        text_column.check_distinct(list(self.texts), self.filled, name, str(path))


def check(job: Job) -> list[str]:
    """Check the files, and tell what was checked and what was not.

    Raises:
        DataError: if a file cannot be used, or if more rows than `data.bad_samples` allows cannot.
    """
    if not isinstance(job.data, TableFileData):
        return []
    files = csv_dialect.of_job(job.data.csv.declared(), {}, job.data.missing)
    told: list[str] = []
    known: dict[str, set[str]] = {}
    for key, text in job.data_paths():
        path, label = job.resolve(text), dotted(key)
        if is_remote(text) and job.streams(key):
            told.append(f"{label}: {text} is in an object store; what is in it is checked when training starts")
        elif is_remote(text) and (key, text) in job.unfetched():
            told.append(
                f"{label}: {text} has no copy here; `drivetrain fetch {job.document.name}` downloads it, and so does "
                "`train`; what is in it is checked then"
            )
        elif is_on_hub(text) and job.streams(key):
            told.append(f"{label}: {text} is on the Hugging Face hub; what is in it is checked when training starts")
        elif (key, text) in job.unfetched():
            told.append(
                f"{label}: {text} is not in the cache of the Hugging Face hub; `drivetrain fetch {job.document.name}` "
                "downloads it, and so does `train`; what is in it is checked then"
            )
        elif path.suffix.lower() not in csv_layout.SUFFIXES or not path.is_file():
            told.append(f"{label}: {text} is there; what is in it is checked when training starts")
        elif path.stat().st_size > LARGEST:
            size = f"{path.stat().st_size / 1e6:,.0f} MB"
            told.append(f"{label}: checked the header of {text}; its {size} are checked when training starts")
        else:
            place = f"{job.document.place(key)}: {label}"
            wanted = _wanted(job)
            if key[-1] != "train":
                wanted = replace(wanted, features=_none)
            count, notes = _rows(job, path, place, wanted, files, known)
            told += [f"{label}: checked {count:,} rows of {text}", *notes]
            if key[-1] == "train" and not isinstance(job, SeriesJob) and job.train.batch > count:
                told.append(
                    f"train.batch_size: {job.train.batch:,} is more than the {count:,} rows of {text}: one step per epoch"
                )
    return told


def _wanted(job: Job) -> _Wanted:
    if isinstance(job, ImageJob):
        path, columns = (job.data.path_column,), list(job.data.label_column)
        if not isinstance(job.data, ImageClassificationData):
            return _Wanted([path, *((name,) for name in columns)], numbers=columns, varied=columns)
        if len(columns) > 1:
            return _Wanted([path, *((name,) for name in columns)], truths=columns, varied=columns)
        # Several labels in a cell can be none, and it takes all of them to find what separates them.
        return _Wanted([path]) if job.data.several else _Wanted([path, (columns[0],)], classes=columns)
    if isinstance(job, TextJob):
        return _Wanted([job.data.text, tuple(job.data.labels)], classes=list(job.data.labels))
    if isinstance(job, TableJob):
        numbers = list(job.data.numeric or ())
        regression = job.task.endswith("regression")
        targets = list(job.data.target)
        classes = targets if not regression and len(targets) == 1 else []
        data = job.data
        settled = {*targets, *numbers, *(data.categorical or ()), *(data.ignore or ()), *data.dates, data.groups}

        def decides(name: str) -> bool:
            return name not in settled and (data.features is None or name in data.features)

        return _Wanted(
            filled=[(name,) for name in targets],
            numbers=numbers + (targets if regression else []),
            classes=classes,
            truths=[] if regression or classes else targets,
            varied=[] if classes else targets,
            dates=list(data.dates),
            form=data.date_format,
            features=decides,
        )
    if isinstance(job, SeriesJob):
        names = tuple(name for name in (job.data.time, job.data.group) if name)
        return _Wanted(
            filled=[(name,) for name in names],
            numbers=list(job.data.features or ()),
            times=[job.data.time] if job.data.time else [],
            unique=names,
            form=job.data.date_format,
        )
    return _Wanted()


def _rows(
    job: Job, path: Path, key: str, wanted: _Wanted, files: CsvFiles, known: dict[str, set[str]]
) -> tuple[int, list[str]]:
    """The number of rows, and notes on those that are left out; `known` gets the classes of the first file."""
    layout = csv_layout.find(path, key, files)
    csv_quotes.check(path, key, layout.names)
    places = {name: place for place, name in enumerate(layout.names)}
    bad: dict[int, list[str]] = {}
    wrong: list[str] = []
    found: dict[str, Counter[str]] = {name: Counter() for name in wanted.classes if name in places}
    kinds = {name: _Cells() for name in layout.names if wanted.features(name)}
    images: dict[int, str] = {}
    numbers: dict[str, set[float | str]] = {name: set() for name in wanted.varied if name in places}
    moments: dict[tuple[str, ...], int] = {}
    count = 0
    for count, row in enumerate(_cells(path, layout), start=1):
        cells = ["" if cell.strip() in files.missing else cell for cell in row] if files.missing else row
        if len(cells) != len(layout.names) + layout.blank:
            wrong.append(f"{row_lines.place(path, count)}: {len(cells)} cells, {printable(','.join(cells))}")
            continue
        for reason in _reasons(cells, places, wanted):
            bad.setdefault(count, []).append(reason)
        for name, kind in kinds.items():
            kind.add(cells[places[name]].strip(), count)
        if isinstance(job, ImageJob) and job.data.path_column in places:
            images[count] = cells[places[job.data.path_column]].strip()
        for name, values in numbers.items():
            if len(values) < 2 and (cell := cells[places[name]].strip()) not in NOTHING:
                values.add(cell if (value := _value(cell)) is None else value)
        if wanted.unique and count not in bad:
            _check_moment(moments, [cells[places[name]].strip() for name in wanted.unique], count, path, key)
        for name, labels in found.items():
            if label := spelling.code(cells[places[name]]).strip():
                labels[label] += 1
    _check_lengths(wrong, path, key, len(layout.names))
    for name, kind in kinds.items():
        kind.check(name, path)
    for name, values in numbers.items():
        if name not in known and count > 1 and len(values) == 1 and isinstance(only := values.pop(), float):
            given = f"{key}: {name} is {only:g} in all rows of {path}"
            raise DataError(given, "a number that differs between rows", f"remove {name}, or add rows")
        known.setdefault(name, set())
    for name, labels in found.items():
        if count and not labels and isinstance(job, TextJob) and not key.endswith("data.test"):
            raise DataError(
                f"{key}: none of the {count:,} texts of {path} has a label in {name}",
                "some labels of each column on both sides",
                "add labels, or remove the column",
            )
        what = f'{key}: column "{name}" of {path}'
        if name not in known and len(labels) == 1:
            raise DataError(
                f"{what} has 1 class: {next(iter(labels))}", "two classes or more", "add rows of another class"
            )
        _check_classes(labels, known.setdefault(name, set(labels)), what)
    notes = _check_images(images, path, job.data.path_column, key, bad) if isinstance(job, ImageJob) else []
    named = [BadSample(f"{path.name} {row_lines.place(path, row)}", "; ".join(bad[row])) for row in sorted(bad)]
    assert isinstance(job.data, TableFileData)
    return count, [*notes, *bad_samples.check(named, count, job.data.bad_samples, key)]


def _check_images(
    cells: Mapping[int, str], manifest: Path, column: str, key: str, bad: dict[int, list[str]]
) -> list[str]:
    """Check that the images of a manifest are there, and say how their paths are read; `bad` gets the rows of the others."""
    paths, notes = image_paths.find(manifest.parent, list(cells.values()), column, key)
    for row, path in zip(cells, paths, strict=True):
        if path and not os.path.lexists(manifest.parent / path):
            bad.setdefault(row, []).append(f"{path} is not there")
    return notes


def _cells(path: Path, layout: csv_layout.CsvLayout) -> Iterator[list[str]]:
    """The rows below the header; empty ones, and those of separators at the end, are no rows."""
    encoding = "utf-8-sig" if layout.encoding == "utf-8" else layout.encoding
    with path.open(encoding=encoding, newline="") as file:
        for _ in range(layout.skipped):
            file.readline()
        reader = csv.reader(file, delimiter=layout.sign)
        empty: list[list[str]] = []
        started = False
        for cells in reader:
            if not cells:
                continue
            if not started:
                started = True
            elif any(map(str.strip, cells)):
                yield from empty
                empty = []
                yield cells
            else:
                empty.append(cells)


def _reasons(cells: list[str], places: Mapping[str, int], wanted: _Wanted) -> Iterator[str]:
    for names in wanted.filled:
        if not any(cells[places[name]].strip() for name in names if name in places):
            yield f"{' and '.join(names)} is empty"
    for name in wanted.numbers:
        cell = cells[places[name]].strip() if name in places else ""
        if not _is_number(cell):
            yield f"{name} is `{printable(cell, 40)}`, not a number"
    for name in wanted.truths:
        cell = cells[places[name]].strip() if name in places else ""
        if cell and _value(cell) not in (0, 1) and (_value(cell) is not None or not _is_number(cell)):
            yield f"{name} is `{printable(cell, 40)}`, not 0 or 1"
    for name in (*wanted.dates, *wanted.times):
        cell = cells[places[name]].strip() if name in places else ""
        if not _is_date(cell, wanted.form) and not (name in wanted.times and _is_number(cell)):
            yield f"{name} is `{printable(cell, 40)}`, no {'date' if name in wanted.dates else 'time'}"


def _is_date(cell: str, form: str | None) -> bool:
    """Whether a cell is empty or a date."""
    if form is None:
        return cell in NOTHING or _is_iso(cell)
    try:
        datetime.strptime(cell, form)
    except ValueError:
        return cell == ""
    return True


def _is_iso(cell: str) -> bool:
    """Whether a cell is a time as 2024-05-31 08:30:00, with a time zone or without."""
    clock = _CLOCK.fullmatch(cell)
    try:
        return clock is not None and datetime.fromisoformat(clock[1]).year > 0
    except ValueError:
        return False


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in NOTHING or cell.lower() in _TRUTH or _NUMBER.fullmatch(cell) is not None
    return True


def _value(cell: str) -> float | None:
    """The number or truth value of a cell; None if it is written in a form that takes more to read."""
    if cell.lower() in _TRUTH:
        return float(cell.lower() == "true")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _check_moment(moments: dict[tuple[str, ...], int], cells: list[str], row: int, path: Path, key: str) -> None:
    """Add the time, and the series, of a row to those before it.

    Raises:
        DataError: if another row has both.
    """
    first = moments.setdefault(tuple(cells), row)
    if first != row and cells[0] not in NOTHING:
        raise DataError(
            f"{key}: {row_lines.place(path, first)} and {row_lines.place(path, row)} of {path} have the same time "
            f"`{printable(cells[0], 40)}`{' in one series' if len(cells) > 1 else ''}",
            "every time only once per series",
            "remove duplicates, or set data.group to the column of the series; an hour that the clocks repeat needs UTC",
        )


def _check_lengths(wrong: list[str], path: Path, key: str, columns: int) -> None:
    if wrong:
        more = [f"and {len(wrong) - SHOWN:,} more"] * (len(wrong) > SHOWN)
        head = f"{key}: {path} has {columns} columns; rows of another length: {len(wrong):,}"
        raise DataError(
            "\n    ".join([head, *wrong[:SHOWN], *more]),
            "as many cells in each row as in the header",
            "put quotes around cells that contain a separator, and add missing cells",
        )


def _check_classes(labels: Counter[str], known: set[str], what: str) -> None:
    if strange := sorted(set(labels) - known):
        shown = ", ".join(f'"{label}" ({labels[label]:,})' for label in strange[:SHOWN])
        raise DataError(
            f"{what}: classes that are not in the training data: {shown}",
            f"the {len(known)} classes of the training data: {', '.join(sorted(known)[:10])}",
            "add samples of these classes to the training data, or remove them here",
        )
