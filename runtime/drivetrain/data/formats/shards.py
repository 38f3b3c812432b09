"""Tables in several files, as the datasets library writes them: `train-00000-of-00002.parquet` and its siblings.

The hub's own Parquet files of a dataset are called 0000.parquet, 0001.parquet and so on, in a folder for each split.
Elsewhere such names mean nothing: one of the files can be for validation. Class numbers get the names that the table
itself stores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.data import decoded_size
from drivetrain.errors import DataError
from drivetrain.system.files import parse_json

if TYPE_CHECKING:
    import pyarrow

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(parquet|arrow))")
NUMBERED = re.compile(r"(?P<number>\d{4})\.parquet")
FEATURES = b"huggingface"
"""Key of the schema's metadata under which the datasets library stores the types of the columns."""


def files(path: Path, key: str) -> list[Path]:
    """Return all files of a table; the first file of several stands for all of them.

    Raises:
        DataError: if one is missing; names `key`.
    """
    if path.name == "0000.parquet" and snapshot(path):
        return _list_numbered(path, key)
    match = SHARD.fullmatch(path.name)
    if match is None or int(match["number"]):
        return [path]
    count = int(match["count"])
    all_files = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}") for number in range(max(1, count))
    ]
    if missing := [file.name for file in all_files if not file.exists()]:
        listed = f"{len(missing)} are not there: {', '.join(missing[:3])}"
        raise _missing_error(f"{path} is one of {count} files of a table, and {listed}", key)
    return all_files


def _missing_error(description: str, key: str) -> DataError:
    return DataError(description, "all of them in one folder", "copy the others beside it", key=key)


def siblings(path: str, paths: Sequence[str]) -> list[str]:
    """Find the files among `paths` that belong to the table of the file `path`, itself included."""
    folder, name = os.path.split(path)
    shard_match = SHARD.fullmatch(name)
    in_folder = [other for other in paths if os.path.dirname(other) == folder]
    if shard_match:
        matches = (SHARD.fullmatch(os.path.basename(other)) for other in in_folder)
        return [os.path.join(folder, match[0]) for match in matches if match and match["stem"] == shard_match["stem"]]
    if NUMBERED.fullmatch(name):
        return [other for other in in_folder if NUMBERED.fullmatch(os.path.basename(other))]
    return [path]


def snapshot(path: Path) -> Path | None:
    """Find the folder of a dataset's commit in the hub's cache that contains a file; None for other files."""
    commits = (folder for folder in path.parents if folder.parent.name == "snapshots")
    return next((folder for folder in commits if folder.parent.parent.name.startswith("datasets--")), None)


def _list_numbered(path: Path, key: str) -> list[Path]:
    """List all of 0000.parquet, 0001.parquet, ... of a folder; refuse a gap in their numbers."""
    all_files = sorted(file for file in path.parent.iterdir() if NUMBERED.fullmatch(file.name))
    missing = [f"{number:04}.parquet" for number, file in enumerate(all_files) if file.name != f"{number:04}.parquet"]
    if missing:
        last = all_files[-1].name
        raise _missing_error(f"{path} is one of the files of a table, up to {last}, and {missing[0]} is not there", key)
    return all_files


def class_names(table: pyarrow.Table) -> pyarrow.Table:
    """Replace class numbers with the class names that the table itself stores; -1 is no class.

    Raises:
        DataError: if the names of all rows do not fit into memory.
    """
    from pyarrow import array, compute, int64, string, types

    for name, classes in _read_class_names(table.schema.metadata or {}).items():
        position = table.schema.get_field_index(name)
        if position < 0 or not types.is_integer(table[name].type):
            continue
        numbers = table[name].cast(int64())
        is_class = compute.and_(compute.greater_equal(numbers, 0), compute.less(numbers, len(classes)))
        class_numbers = compute.if_else(is_class, numbers, None)
        # A JSON can name half of a surrogate pair.
        encoded_names = [text.encode("utf-8", "replace") for text in classes]
        lengths = compute.take(array(map(len, encoded_names), int64()), class_numbers)
        decoded_size.check_fits(compute.sum(lengths).as_py() or 0, f'column "{name}" with the names of its classes', "")
        table = table.set_column(position, name, compute.take(array(encoded_names, string()), class_numbers))
    return table


def _read_class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    try:
        features = parse_json(metadata[FEATURES], dict)["info"]["features"]
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
