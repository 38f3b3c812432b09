"""Inspects data and drafts a spec for it; without torch, and without reading large files to their end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drivetrain.data.formats import csv_dialect, csv_layout, table_file, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.formats.shards import SHARD
from drivetrain.data.images import class_folders
from drivetrain.data.images.file_names import EXTENSIONS
from drivetrain.data.labels import list_names
from drivetrain.data.survey import (
    array_draft,
    image_draft,
    series_draft,
    table_draft,
    table_sample,
    target_guess,
    text_draft,
)
from drivetrain.data.survey.pretrained_draft import start_from_pretrained
from drivetrain.data.survey.request import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import TableSample
from drivetrain.errors import DataError, SpecError
from drivetrain.job.draft import Draft, Entry, scalar
from drivetrain.job.user_files import nearest_path

FILES = (*table_file.SUFFIXES, ".npz")
SHORT_TEXT_WORDS = 15
"""Words of a text below which it may be one column of many, such as a name."""
MOST_OTHERS = {True: 5, False: 12}
"""Numbers and columns with few values beside a short text, or a long one; with more a table is no table of texts."""
POSSIBLE = "a folder with one folder of images for each class, a .csv, .tsv, .jsonl or .parquet table, or an .npz"


def look(request: SurveyRequest) -> Draft:
    """The draft for a folder or a file.

    Raises:
        DataError: if no task fits the data, or it cannot be read.
        SpecError: if an option does not fit the data.
    """
    path = request.path
    try:
        if not os.path.lexists(path):
            near = nearest_path([Path("/" if path.is_absolute() else ".")], str(path))
            raise DataError(f"{KEY}: {path} is not there", POSSIBLE, near or "check the spelling")
        draft = _folder(request, path) if path.is_dir() else _file(request, path)
        return start_from_pretrained(request, draft) if request.pretrained else draft
    except OSError as error:
        raise DataError(
            f"{KEY}: {path} cannot be read: {(error.strerror or str(error)).lower()}",
            POSSIBLE,
            "give this user the right to read it",
        ) from None


def _folder(request: SurveyRequest, folder: Path) -> Draft:
    if saved := _dataset(folder):
        return _splits(request, folder, saved)
    tables = sorted(p for p in folder.iterdir() if p.suffix.lower() in FILES and p.is_file() and p.name[0] != ".")
    images = any(entry.lower().endswith(EXTENSIONS) for entry in os.listdir(folder))
    if tables and (images or len(class_folders.subfolders(folder, KEY)) < 2):
        return _file(request, _one(folder, tables))
    return image_draft.folder_draft(request, folder)


def _dataset(folder: Path) -> dict[str, str] | None:
    """The splits of a folder of tables that has several, or that the datasets library wrote; None for other folders."""
    try:
        by_split = table_paths.find_splits(folder, KEY)
    except DataError:
        return None
    several = (
        len(by_split) > 1
        or (folder / "state.json").is_file()
        or SHARD.fullmatch(Path(next(iter(by_split.values()))).name)
    )
    return by_split if several else None


def _splits(request: SurveyRequest, folder: Path, splits: dict[str, str]) -> Draft:
    """The draft for the training table, with the folder in its place, of which the splits are recognized."""
    draft = _file(request, folder / splits.get("train", splits.get("", "")))
    listed_splits = list_names([f"{name or 'the table'} is {path}" for name, path in splits.items()])
    other_entries = [entry for entry in draft.data if entry.key != "train" and entry.key not in splits]
    draft.data = [Entry("train", scalar(request.written(folder)), listed_splits), *other_entries]
    return draft


def _one(folder: Path, tables: Sequence[Path]) -> Path:
    """The table of a folder to use: the only one, or the one for training."""
    train = [path for path in tables if path.stem.casefold() in ("train", "training")]
    if len(tables) > 1 and len(train) != 1:
        raise DataError(
            f"{KEY}: {folder} has {len(tables):,} files of data: {list_names([path.name for path in tables])}",
            "one of them",
            f"name it: drivetrain init {tables[0]}",
        )
    return (train or list(tables))[0]


def _file(request: SurveyRequest, path: Path) -> Draft:
    suffix = path.suffix.lower()
    table_paths.check_is_table(path, KEY)
    if not path.is_file() or suffix not in FILES:
        raise DataError(
            f"{KEY}: {path} is of no known kind", POSSIBLE, f"name a folder, or a file that ends in {', '.join(FILES)}"
        )
    if suffix == ".npz":
        return array_draft.array_draft(request, path)
    files = CsvFiles(request.csv, csv_dialect.OPTION)
    draft = _table(request, table_sample.read(path, files))
    draft.found += files.notes
    if request.csv and suffix in csv_layout.SUFFIXES:
        written = ", ".join(f"{key}: {value}" for key, value in request.csv.items())
        draft.data.insert(1, Entry("csv", f"{{{written}}}", "how the file is written"))
    return draft


def _table(request: SurveyRequest, sample: TableSample) -> Draft:
    """The draft for a table: image paths, readings over time, texts, or independent rows."""
    if request.task in (None, *image_draft.TASKS) and (draft := image_draft.manifest_draft(request, sample)):
        return draft
    if not request.texts and (draft := series_draft.series_draft(request, sample)):
        return draft
    if request.task in (None, text_draft.TASK):
        texts = text_draft.text_columns(request, sample)
        word_count = sum(column.words for column in texts)
        if texts and (request.task or request.texts or _others(sample) <= MOST_OTHERS[word_count < SHORT_TEXT_WORDS]):
            draft = text_draft.text_draft(request, sample, texts)
            if draft:
                return draft
    if request.task not in (None, table_draft.CLASSIFICATION, table_draft.REGRESSION) or request.texts:
        raise _misfit(request, sample)
    return table_draft.table_draft(request, sample)


def _others(sample: TableSample) -> int:
    """Number of columns beside a text that a table job would use as features."""
    columns = [c for c in sample.columns.values() if not c.refused and not target_guess.identifier(c)]
    return sum(c.kind == "number" or c.classes for c in columns)


def _misfit(request: SurveyRequest, sample: TableSample) -> SpecError:
    options = f"--task {request.task}" if request.task else f"--text {' --text '.join(request.texts)}"
    column_list = [f"{c.name} ({c.kind}, {c.different:,} different)" for c in sample.columns.values()]
    return SpecError(
        f"{options}: {sample.path} has no columns for it: {list_names(column_list, 12)}",
        "text-classification: a column of texts and one of labels; image-classification and image-regression: paths of "
        "images, and labels or numbers",
        "leave it out, or name the columns with --text and --target",
    )
