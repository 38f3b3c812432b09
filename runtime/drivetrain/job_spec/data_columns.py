"""Checks the columns that a job names against the headers of its data files and the earlier run that it starts from.

The headers of CSV and TSV files are read without pyarrow before a run starts. The readers of the data check all files again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.data.formats import csv_dialect, csv_layout, table_paths
from drivetrain.data.notes import list_names
from drivetrain.errors import DataError, Problem, SpecError, nearest
from drivetrain.job import Job
from drivetrain.job.data import OFF
from drivetrain.job.formatting import format_value
from drivetrain.job.remote_data import list_readable_paths
from drivetrain.job.tables import TableJob
from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks import modality_of

Key = tuple[str, ...]
MAX_LISTED_COLUMNS = 30
"""Largest number of columns in a message about a file."""
MAX_EARLIER_COLUMNS = 8
"""Largest number of columns in a message about an earlier run."""


def check_headers(job: Job) -> None:
    """Check the headers of all data files of a job.

    Raises:
        SpecError: if the job names columns, but its data has none.
        DataError: if a file is not a table, its separator or encoding is ambiguous, or columns are missing (lists all).
    """
    problems = list(_find_column_keys_without_table(job))
    if problems:
        raise SpecError(problems)
    missing: list[tuple[Key, str, Path, list[str]]] = []
    files = csv_dialect.of_job(job.csv_settings(), {})
    for key, text in list_readable_paths(job):
        path = job.resolve(text)
        label = job.locate_key(key)
        _check_file_kind(job, path, label)
        if path.suffix.lower() not in csv_dialect.SUFFIXES or not path.is_file():
            continue
        if path.stat().st_size == 0:
            description = f"{label}: {path} is empty (0 bytes)"
            raise DataError(description, "a header and at least one row", "check how the file was written")
        if names := csv_layout.read_names(path, label, files):
            dates = getattr(job.data, "dates", {}).items()
            date_columns = (f"{name}.{part}" for name, parts in dates for part in parts)
            table_paths.check_date_columns(date_columns, set(names) - set(job.list_columns("ignore")), path, label)
            named_columns = _list_named_columns(job, key)
            missing += [(option, name, path, names) for option, name in named_columns if name not in names]
    if missing:
        raise _missing_columns_error(job, missing)


def _check_file_kind(job: Job, path: Path, label: str) -> None:
    modality = modality_of(job)
    if modality.reads_one_table and path.is_dir():
        raise DataError(f"{label}: {path} is a folder", "a table: CSV, TSV, JSONL or Parquet", "name one file")
    if path.is_file():
        table_paths.check_is_table(path, label)
        if modality.reads_one_table:
            table_paths.check_suffix(path, label, (*table_paths.SUFFIXES, *modality.array_suffixes))


def _find_column_keys_without_table(job: Job) -> Iterator[Problem]:
    """Find keys that name columns although the images are in arrays or class folders, which have no columns."""
    paths = [text for _, text in job.data_paths()]
    if not all(text.lower().endswith(".npz") or job.resolve(text).is_dir() for text in paths):
        return
    for key in ("path_column", "label_column", "label_separator"):
        value = getattr(job.data, key, None)
        if value is not None and value != type(job.data).model_fields[key].default:
            yield job.problem(
                ("data", key),
                f"is {format_value(value if isinstance(value, str) else list(value))}, and {format_value(paths[0])} has no columns",
                "for a manifest: a .csv, .tsv, .jsonl or .parquet; a folder has class folders, an .npz `images` and `labels`",
                "write `multi_label: true` in its place" if getattr(job.data, "several", False) else "remove it",
            )


def _missing_columns_error(job: Job, missing: list[tuple[Key, str, Path, list[str]]]) -> DataError:
    """Return the error about missing columns.

    Args:
        missing: for each column the key that names it, its name, the file, and the columns of the file.
    """
    several_files = len({path for _, _, path, _ in missing}) > 1
    possible = dict.fromkeys(
        f"{path}: " * several_files + list_names(columns, MAX_LISTED_COLUMNS) for _, _, path, columns in missing
    )
    suggestions = dict.fromkeys(nearest(name, columns) for _, name, _, columns in missing)
    return DataError(
        "\n".join(f'{job.locate_key(key)}: {path} has no column "{name}"' for key, name, path, _ in missing),
        f"its columns: {'; '.join(possible)}",
        " ".join(filter(None, suggestions)) or "use one of its columns",
    )


def _list_named_columns(job: Job, file: Key) -> Iterator[tuple[Key, str]]:
    """Yield the columns that a file of this job must have, each with the key that names it."""
    for option in (*job.data.COLUMN_KEYS, *(("ignore", "groups") if file == ("data", "train") else ())):
        for name in job.list_columns(option):
            if name != OFF or option != "groups":
                yield ("data", option, *((name,) if option == "labels" else ())), name


def check_earlier_run(earlier: EarlierModel) -> None:
    """Check that the data keys of a job agree with the earlier run that it starts from, without reading the data.

    Raises:
        SpecError: if a key contradicts the earlier run.
    """
    modality_of(earlier.job).check_earlier_run(earlier.job, earlier)


def check_table(job: TableJob, earlier: EarlierModel) -> None:
    """Check that the features and their kinds stay the same, and that none of them is a target or ignored."""
    data, kinds = job.data, {kind: _list_columns(earlier.preprocessing, kind) for kind in ("numeric", "categorical")}
    dates: dict[str, list[str]] = earlier.preprocessing.get("dates", {})
    from_dates = {f"{name}.{feature}" for name, features in dates.items() for feature in features}
    trained_columns = [*(name for names in kinds.values() for name in names if name not in from_dates), *dates]
    for key, earlier_value in (("dates", dates), ("date_format", earlier.preprocessing.get("date_format"))):
        if key in job.data.model_fields_set and job.data.model_dump(mode="json")[key] not in (earlier_value, None, {}):
            description = f"differs from the earlier run, in which it is {earlier_value or 'absent'}"
            earlier.refuse(description, "the same", f"remove data.{key}", ("data", key))
    refuse_features(earlier, "target", data.target, trained_columns, "a column that it did not see", "use another run")
    action = "remove it from data.ignore, or use another run"
    refuse_features(earlier, "ignore", data.ignore or (), trained_columns, "columns that it did not see", action)
    if data.features and set(data.features) != set(trained_columns):
        names, trained = (list_names(columns, MAX_EARLIER_COLUMNS) for columns in (data.features, trained_columns))
        description = f"is {names}, and the earlier run was trained on {trained}"
        earlier.refuse(description, "the same columns", "remove data.features", ("data", "features"))
    for kind, kind_columns in kinds.items():
        for name in getattr(data, kind) or ():
            if name not in kind_columns:
                description = f"has {name!r}, which is not a {kind} feature of the earlier run"
                possible = f"its {kind} features: {list_names(kind_columns, MAX_EARLIER_COLUMNS) or 'none'}"
                earlier.refuse(description, possible, f"remove data.{kind}", ("data", kind))


def refuse_features(
    earlier: EarlierModel, option: str, names: Sequence[str | None], features: Sequence[str], possible: str, action: str
) -> None:
    """Raise a SpecError about a data key that names a feature of the earlier run."""
    for name in names:
        if name in features:
            earlier.refuse(f"has {name!r}, which is a feature of the earlier run", possible, action, ("data", option))


def _list_columns(preprocessing: Mapping[str, Any], kind: str) -> list[str]:
    return [column["name"] for column in preprocessing.get(kind, ())]
