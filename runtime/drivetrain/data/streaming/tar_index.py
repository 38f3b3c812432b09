"""What is in a tar shard (WebDataset): members with the same name up to its first dot are one sample.

    0001.jpg  0001.cls  0002.png  0002.json ...

The index of a shard is a table with one row for each sample: where its image is, and its targets as written.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drivetrain.data.images.file_names import EXTENSIONS
from drivetrain.data.streaming import tar_members
from drivetrain.data.streaming.shard import Shard, unreadable_error
from drivetrain.data.streaming.tar_members import Member

if TYPE_CHECKING:
    import pyarrow

OFFSET, SIZE = "\x00offset", "\x00size"
"""Columns of an index: where the image of a sample is in the file, and its bytes; none if there is no image."""
POSSIBLE = "a complete tar file without compression, whose members are images with a .cls or .json beside them"
LARGEST_TEXT = 1 << 20
"""Bytes of the largest .json or .cls."""


@dataclass
class _Sample:
    offset: int | None = None
    size: int = 0
    cells: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    """Content of a .cls."""


def read(file: Path, shard: Shard, columns: Sequence[str], key: str) -> pyarrow.Table:
    """The index of a tar shard.

    Args:
        file: the shard on this machine.
        columns: the targets: keys of .json members; a .cls is the first one.

    Raises:
        DataError: if it is no tar file, or is cut off.
    """
    from pyarrow import array, int64, table

    samples: dict[str, _Sample] = {}
    try:
        with file.open("rb") as opened:
            for member in tar_members.members(file):
                _add(samples, opened, member, columns)
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise unreadable_error(shard, key, error, POSSIBLE) from None
    all_samples = list(samples.values())
    targets = {name: cells([_cell(one_sample, name, columns) for one_sample in all_samples]) for name in columns}
    return table(
        {
            OFFSET: array([one_sample.offset for one_sample in all_samples], int64()),
            SIZE: array([one_sample.size for one_sample in all_samples], int64()),
            **targets,
        }
    )


def cells(values: Sequence[Any]) -> Any:
    """A column of values of JSON: numbers, lists of texts, or texts."""
    from pyarrow import array, float64, int64, list_, string

    kinds = {type(value) for value in values if value is not None}
    if list in kinds:
        lists = [value if isinstance(value, list) or value is None else [value] for value in values]
        return array([None if names is None else [str(name) for name in names] for names in lists], list_(string()))
    if kinds <= {int}:
        return array(values, int64())
    if kinds <= {int, float}:
        return array(values, float64())
    return array([None if value is None else str(value) for value in values], string())


def _add(samples: dict[str, _Sample], opened: BinaryIO, member: Member, columns: Sequence[str]) -> None:
    suffix = f".{member.ending.rsplit('.', 1)[-1]}"
    if suffix not in EXTENSIONS and member.ending not in ("cls", "json"):
        return
    sample = samples.setdefault(member.sample, _Sample())
    if suffix in EXTENSIONS:
        if sample.offset is not None:
            raise ValueError(f"sample {member.sample} has two images, the second one is {member.name}")
        sample.offset, sample.size = member.offset, member.size
        return
    if member.ending == "cls":
        sample.label = tar_members.read_text(opened, member, LARGEST_TEXT).strip()
    else:
        content = tar_members.read_object(opened, member, LARGEST_TEXT)
        sample.cells = {name: content.get(name) for name in columns}


def _cell(sample: _Sample, name: str, columns: Sequence[str]) -> Any:
    if sample.cells.get(name) is not None:
        return sample.cells[name]
    return sample.label if name == columns[0] else None
