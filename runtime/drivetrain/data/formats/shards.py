"""Tables in several files, as the datasets library writes them: `train-00000-of-00002.parquet` and its siblings.

The hub's own Parquet files of a dataset are called 0000.parquet, 0001.parquet and so on, in a folder for each split. Elsewhere
such names say nothing: one of the files can be for validation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.data import decoded_size
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(parquet|arrow))")
NUMBERED = re.compile(r"(?P<number>\d{4})\.parquet")
FEATURES = b"huggingface"
"""Key of the schema's metadata under which the datasets library stores the types of the columns."""


def files(path: Path, key: str) -> list[Path]:
    """The files of a table: the first one of several stands for all of them.

    Raises:
        DataError: if one is missing; names `key`.
    """
    if path.name == "0000.parquet" and snapshot(path):
        return _list_numbered(path, key)
    match = SHARD.fullmatch(path.name)
    if match is None or int(match["number"]):
        return [path]
    count = int(match["count"])
    every = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}") for number in range(max(1, count))
    ]
    if missing := [file.name for file in every if not file.exists()]:
        raise DataError(
            f"{key}: {path} is one of {count} files of a table, and {len(missing)} are not there: {', '.join(missing[:3])}",
            "all of them in one folder",
            "copy the others beside it",
        )
    return every


def siblings(path: str, paths: Sequence[str]) -> list[str]:
    """A file and the other parts of its table."""
    folder, name = os.path.split(path)
    kind = SHARD.fullmatch(name)
    in_folder = [other for other in paths if os.path.dirname(other) == folder]
    if kind:
        same = (SHARD.fullmatch(os.path.basename(other)) for other in in_folder)
        return [os.path.join(folder, match[0]) for match in same if match and match["stem"] == kind["stem"]]
    if NUMBERED.fullmatch(name):
        return [other for other in in_folder if NUMBERED.fullmatch(os.path.basename(other))]
    return [path]


def snapshot(path: Path) -> Path | None:
    """The folder of a commit of a dataset, in the hub's cache, that a file is in; None if it is elsewhere."""
    return next((folder for folder in path.parents if _is_snapshot(folder)), None)


def _is_snapshot(folder: Path) -> bool:
    return folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("datasets--")


def _list_numbered(path: Path, key: str) -> list[Path]:
    """All of 0000.parquet, 0001.parquet, ..."""
    every = sorted(file for file in path.parent.iterdir() if NUMBERED.fullmatch(file.name))
    missing = [f"{number:04}.parquet" for number, file in enumerate(every) if file.name != f"{number:04}.parquet"]
    if missing:
        raise DataError(
            f"{key}: {path} is one of the files of a table, up to {every[-1].name}, and {missing[0]} is not there",
            "all of them in one folder",
            "copy the others beside it",
        )
    return every


def class_names(table: pyarrow.Table) -> pyarrow.Table:
    """The same table with the names of classes instead of their numbers, where the table has names; -1 is no class."""
    return with_names(table, _classes(table.schema.metadata or {}))


def with_names(table: pyarrow.Table, names_by_column: Mapping[str, Sequence[str]]) -> pyarrow.Table:
    """The same table with these names of classes, by column, instead of numbers; -1 is no class.

    Raises:
        DataError: if the names of all rows do not fit into memory.
    """
    from pyarrow import array, compute, int64, string

    for name, classes in names_by_column.items():
        position = table.schema.get_field_index(name)
        if position < 0 or not _is_numbered(table[name]):
            continue
        numbers = table[name].cast(int64())
        inside = compute.and_(compute.greater_equal(numbers, 0), compute.less(numbers, len(classes)))
        class_numbers = compute.if_else(inside, numbers, None)
        # A JSON can name half of a surrogate pair.
        encoded_names = [text.encode("utf-8", "replace") for text in classes]
        lengths = compute.take(array(map(len, encoded_names), int64()), class_numbers)
        decoded_size.check(compute.sum(lengths).as_py() or 0, f'column "{name}" with the names of its classes', "")
        table = table.set_column(position, name, compute.take(array(encoded_names, string()), class_numbers))
    return table


def _is_numbered(column: pyarrow.ChunkedArray) -> bool:
    """Whether cells are whole numbers; those of a CSV are text if the labels of the job are."""
    from pyarrow import compute, types

    if types.is_integer(column.type):
        return True
    text = types.is_string(column.type) or types.is_large_string(column.type)
    return text and bool(compute.all(compute.match_substring_regex(column, r"^-?\d{1,9}$")).as_py())


def _classes(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Class names by column, as the datasets library stores them."""
    try:
        features = json.loads(metadata[FEATURES])["info"]["features"]
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
