"""Checks that data files have the columns that a job names, by their headers: without pyarrow, and before a run starts.

Only CSV and TSV files can be checked in this way. The reader of the data checks all files again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.data.formats import csv_dialect, csv_header, csv_layout, other_files, table_splits
from runtime.errors import DataError, Problem, SpecError, nearest
from runtime.job import Job, dotted
from runtime.job.data import TableFileData
from runtime.job.formatting import shown
from runtime.job.images import ImageJob
from runtime.job.remote_data import readable_paths
from runtime.job.series import SeriesJob
from runtime.job.tables import TableJob
from runtime.job.text import TextJob

Key = tuple[str, ...]
TABLES = (TableJob, TextJob, SeriesJob)
SHOWN = 30
"""Largest number of columns in a message."""


@dataclass(frozen=True)
class Missing:
    """A column that a file does not have."""

    key: Key
    name: str
    path: Path
    names: list[str]

    def line(self, job: Job) -> str:
        """What is wrong, with the place of the key that names the column."""
        return f'{job.document.place(self.key)}: {dotted(self.key)}: {self.path} has no column "{self.name}"'


def check(job: Job) -> None:
    """Check the headers of all data files of a job.

    Raises:
        SpecError: if it names columns of data that has none.
        DataError: if a file is no table, if its separator or encoding is not clear, or if it lacks columns; names all of them.
    """
    if idle := list(_idle(job)):
        raise SpecError(idle)
    missing: list[Missing] = []
    files = csv_dialect.of_job(job.data.csv.declared() if isinstance(job.data, TableFileData) else {}, {})
    for key, text in readable_paths(job):
        path = job.resolve(text)
        label = f"{job.document.place(key)}: {dotted(key)}"
        if path.is_dir() and isinstance(job, TABLES) and not getattr(job.data, "stream", None):
            raise DataError(f"{label}: {path} is a folder", "a table: CSV, TSV, JSONL or Parquet", "name one file")
        if path.is_file():
            other_files.check(path, label)
            if isinstance(job, TABLES) and not getattr(job.data, "stream", None):
                other_files.check_suffix(
                    path, label, (*table_splits.SUFFIXES, *((".npz",) if isinstance(job, SeriesJob) else ()))
                )
        if path.suffix.lower() not in csv_layout.SUFFIXES or not path.is_file():
            continue
        if path.stat().st_size == 0:
            raise DataError(
                f"{label}: {path} is empty (0 bytes)", "a header and at least one row", "check how the file was written"
            )
        if names := csv_header.names(path, label, files):
            missing += [Missing(*named, path, names) for named in _wanted(job, key) if named[1] not in names]
    if missing:
        raise _error(job, missing)


def _idle(job: Job) -> Iterator[Problem]:
    """Keys that name columns of images whose files have none: arrays, and class folders."""
    paths = [text for _, text in job.data_paths()]
    if not isinstance(job, ImageJob) or job.data.stream:
        return
    if not all(text.lower().endswith(".npz") or job.resolve(text).is_dir() for text in paths):
        return
    for key in ("path_column", "label_column", "label_separator"):
        value = getattr(job.data, key, None)
        if value is not None and value != type(job.data).model_fields[key].default:
            yield job.problem(
                ("data", key),
                f"is {shown(value if isinstance(value, str) else list(value))}, and {shown(paths[0])} has no columns",
                "for a manifest: a .csv, .tsv, .jsonl or .parquet; a folder has class folders, an .npz `images` and `labels`",
                "write `multi_label: true` in its place" if getattr(job.data, "several", False) else "remove it",
            )


def _error(job: Job, missing: list[Missing]) -> DataError:
    possible = {
        f"{one.path}: " * (len({other.path for other in missing}) > 1) + listed(one.names): None for one in missing
    }
    meant = dict.fromkeys(nearest(one.name, one.names) for one in missing)
    return DataError(
        "\n".join(one.line(job) for one in missing),
        f"its columns: {'; '.join(possible)}",
        " ".join(filter(None, meant)) or "use one of its columns",
    )


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """`a, b, c` and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _wanted(job: Job, file: Key) -> Iterator[tuple[Key, str]]:
    """The columns that a file of this job must have, each with the key that names it."""
    trained = file == ("data", "train")
    if isinstance(job, ImageJob):
        yield ("data", "path_column"), job.data.path_column
        yield from ((("data", "label_column"), name) for name in job.data.label_column)
        if trained and job.data.groups:
            yield ("data", "groups"), job.data.groups
    elif isinstance(job, TextJob):
        yield from ((("data", "text"), name) for name in job.data.text)
        yield from ((("data", "labels", name), name) for name in job.data.labels)
        if trained and job.data.groups:
            yield ("data", "groups"), job.data.groups
    elif isinstance(job, TableJob):
        options = ("target", "features", "numeric", "categorical", "dates", *(("ignore",) if trained else ()))
        for option in options:
            yield from ((("data", option), name) for name in getattr(job.data, option) or ())
        if trained and job.data.groups:
            yield ("data", "groups"), job.data.groups
    elif isinstance(job, SeriesJob):
        for option in ("time", "features", "label", "group", *(("groups",) if trained else ())):
            value = getattr(job.data, option)
            yield from ((("data", option), name) for name in ((value,) if isinstance(value, str) else value or ()))
