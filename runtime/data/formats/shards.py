"""Tables in several files, as the datasets library writes them: `train-00000-of-00002.parquet` and its siblings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(parquet|arrow))")
FEATURES = b"huggingface"
"""Key of the schema's metadata under which the datasets library stores the types of the columns."""


def files(path: Path, key: str) -> list[Path]:
    """The files of a table: the first one of several stands for all of them.

    Raises:
        DataError: if one is missing; names `key`.
    """
    found = SHARD.fullmatch(path.name)
    if found is None or int(found["number"]):
        return [path]
    count = int(found["count"])
    every = [
        path.with_name(f"{found['stem']}-{number:05}-of-{count:05}{found['suffix']}") for number in range(max(1, count))
    ]
    if missing := [each.name for each in every if not each.exists()]:
        raise DataError(
            f"{key}: {path} is one of {count} files of a table, and {len(missing)} are not there: {', '.join(missing[:3])}",
            "all of them in one folder",
            "copy the others beside it",
        )
    return every


def class_names(table: pyarrow.Table) -> pyarrow.Table:
    """The same table with the names of classes instead of their numbers, where the table has names; -1 is no class."""
    from pyarrow import array, compute, int64, string, types

    for name, classes in _classes(table.schema.metadata or {}).items():
        place = table.schema.get_field_index(name)
        if place < 0 or not types.is_integer(table.schema.field(name).type):
            continue
        numbers = table[name].cast(int64())
        inside = compute.and_(compute.greater_equal(numbers, 0), compute.less(numbers, len(classes)))
        chosen = compute.if_else(inside, numbers, None)
        table = table.set_column(place, name, compute.take(array(classes, string()), chosen))
    return table


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
