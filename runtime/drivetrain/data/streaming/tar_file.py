"""Reads tar shards (WebDataset): members with the same name up to its first dot are one sample.

    0001.jpg  0001.cls  0002.png  0002.json ...       images: their index has a row for each, with its place and targets
    0001.txt  0001.cls        texts: the column that is called text or txt, else the first one; the first label column
    0002.json                 {"title": ..., "text": ..., "topic": ...}: columns by their names
    0003.title.txt  0003.text.txt  0003.topic.cls     columns by their names

What a .json says comes before the content of a .txt or .cls.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pyarrow
from pyarrow import array, float64, int64, list_, string, table

from drivetrain.data.images.image_paths import EXTENSIONS
from drivetrain.data.streaming.shard import Shard, unreadable_error
from drivetrain.system.files import parse_json

_NAME_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Kinds of headers that say more of the next member, such as a long name."""
LARGEST_HEADER = 1 << 20
"""Bytes of the largest of them."""


@dataclass(frozen=True)
class Member:
    """A file in a tar file."""

    name: str
    sample: str
    """What its name has in common with the other members of its sample."""
    ending: str
    """What follows the first dot, in small letters: `jpg`, `cls`, `json`, `title.txt`."""
    offset: int
    size: int


class _Header(tarfile.TarInfo):
    """The header of a member. A long name is read into memory at once, so its size is checked first."""

    def _proc_member(self, file: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _NAME_HEADERS and not 0 <= self.size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"the header of a member says that {self.size:,} bytes of names follow")
        return super()._proc_member(file)  # type: ignore[misc, no-any-return]


def list_members(file: Path) -> Iterator[Member]:
    """All files of a tar file that belong to a sample.

    Raises:
        ValueError, EOFError, tarfile.TarError: if it is no tar file, is cut off, or has a member that is larger than it.
    """
    size, end = file.stat().st_size, 0
    with tarfile.open(file, "r:", tarinfo=_Header) as opened:
        while info := _next(opened):
            # tarfile would go to where the next member begins: back for a size below 0, or where no file can reach.
            if info.size < 0 or opened.offset > size:
                raise ValueError(
                    f"{info.name} has {info.size:,} bytes, and the file {size:,}: it is damaged or cut off"
                )
            if info.issparse():
                raise ValueError(f"{info.name} is stored without its zeros (a sparse file)")
            if info.isfile() and (member := _member(info)):
                yield member
            end = opened.offset
    _check_end(file, end)


def _next(opened: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        return opened.next()
    except (OSError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"the header of a member is damaged: {str(error) or type(error).__name__}") from None


def read_text(opened: BinaryIO, member: Member, max_bytes: int) -> str:
    """The content of a member; raises ValueError if it is too large, or is not UTF-8."""
    if member.size > max_bytes:
        raise ValueError(f"{member.name} has {member.size:,} bytes, more than {max_bytes:,}")
    opened.seek(member.offset)
    try:
        return opened.read(member.size).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{member.name} is not UTF-8") from None


def read_object(opened: BinaryIO, member: Member, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a member; raises ValueError if it is too large, or holds something else."""
    try:
        content = parse_json(read_text(opened, member, max_bytes))
    except json.JSONDecodeError as error:
        raise ValueError(f"{member.name} line {error.lineno}, column {error.colno}: {error.msg.lower()}") from None
    except ValueError as error:
        raise ValueError(f"{member.name}: {str(error).removeprefix(f'{member.name} ')}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{member.name} is no mapping of names to values")
    return content


def _member(info: tarfile.TarInfo) -> Member | None:
    path = PurePosixPath(info.name)
    stem, dot, ending = path.name.partition(".")
    if not stem or not dot:
        return None
    return Member(info.name, str(path.parent / stem), ending.lower(), info.offset_data, info.size)


def _check_end(file: Path, end: int) -> None:
    """Check that zeros mark the end: tarfile takes a file that is cut off between two members for a whole one."""
    with file.open("rb") as opened:
        opened.seek(end)
        if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError("it is cut off")


OFFSET, SIZE = "\x00offset", "\x00size"
"""Columns of an index: where the image of a sample is in the file, and its bytes; none if there is no image."""
POSSIBLE_IMAGES = "a complete tar file without compression, whose members are images with a .cls or .json beside them"
LARGEST_TEXT = 1 << 20
"""Bytes of the largest .json or .cls."""


def index_images(file: Path, shard: Shard, columns: Sequence[str], key: str) -> pyarrow.Table:
    """The index of a tar shard.

    Args:
        file: the shard on this machine.
        columns: the targets: keys of .json members; a .cls is the first one.

    Raises:
        DataError: if it is no tar file, or is cut off.
    """
    rows = list(_read_samples(file, shard, key, POSSIBLE_IMAGES, _is_of_image, partial(_index_sample, columns=columns)))
    places = {name: array([row.get(name) for row in rows], int64()) for name in (OFFSET, SIZE)}
    return table(places | {name: cells([row.get(name) for row in rows]) for name in columns})


def _read_samples(
    file: Path,
    shard: Shard,
    key: str,
    possible: str,
    is_needed: Callable[[Member], bool],
    read: Callable[[BinaryIO, Sequence[Member]], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield what `read` makes of the members of each sample that are needed, in the order of their first members.

    Raises:
        DataError: if the file is not what `possible` says.
    """
    try:
        samples: dict[str, list[Member]] = {}
        for member in filter(is_needed, list_members(file)):
            samples.setdefault(member.sample, []).append(member)
        with file.open("rb") as opened:
            for members in samples.values():
                yield read(opened, members)
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise unreadable_error(shard, key, error, possible) from None


def cells(values: Sequence[Any]) -> Any:
    """A column of values of JSON: numbers, lists of texts, or texts."""
    kinds = {type(value) for value in values if value is not None}
    if list in kinds:
        lists = [value if isinstance(value, list) or value is None else [value] for value in values]
        return array([None if names is None else [str(name) for name in names] for names in lists], list_(string()))
    if kinds <= {int}:
        return array(values, int64())
    if kinds <= {int, float}:
        return array(values, float64())
    return array([None if value is None else str(value) for value in values], string())


def _is_image(member: Member) -> bool:
    return f".{member.ending.rpartition('.')[2]}" in EXTENSIONS


def _is_of_image(member: Member) -> bool:
    return _is_image(member) or member.ending in ("cls", "json")


def _index_sample(opened: BinaryIO, members: Sequence[Member], columns: Sequence[str]) -> dict[str, Any]:
    """Place and size of the image of a sample, and its targets."""
    row: dict[str, Any] = {SIZE: 0}
    label = None
    for member in members:
        if _is_image(member):
            if OFFSET in row:
                raise ValueError(f"sample {member.sample} has two images, the second one is {member.name}")
            row |= {OFFSET: member.offset, SIZE: member.size}
        elif member.ending == "cls":
            label = read_text(opened, member, LARGEST_TEXT).strip()
        else:
            content = read_object(opened, member, LARGEST_TEXT)
            row |= {name: content.get(name) for name in columns}
    if row.get(columns[0]) is None:
        row[columns[0]] = label
    return row


POSSIBLE_TEXTS = (
    "a complete tar file without compression, whose members are .txt with .cls, or .json with texts and labels"
)
MAX_MEMBER_BYTES = 64 << 20
"""Bytes of the largest member."""


def read_records(
    file: Path, shard: Shard, key: str, texts: Sequence[str], labels: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """All samples of a shard, in the order of their first members.

    Args:
        file: the shard on this machine.

    Raises:
        DataError: if it cannot be read.
    """
    read = partial(_record, texts=texts, labels=labels)
    return _read_samples(file, shard, key, POSSIBLE_TEXTS, _is_of_text, read)


def _is_of_text(member: Member) -> bool:
    return member.ending.rpartition(".")[2] in ("txt", "cls", "json")


def _record(opened: BinaryIO, members: Sequence[Member], texts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    cells: dict[str, Any] = {}
    for member in members:
        name, _, kind = member.ending.rpartition(".")
        if kind == "json":
            cells |= read_object(opened, member, MAX_MEMBER_BYTES)
            continue
        names = texts if kind == "txt" else labels
        # Endings are compared in small letters, since names of files may be in any.
        column = next((candidate for candidate in names if candidate.lower() == name), "") if name else _plain(names)
        if not column:
            continue
        if column in columns:
            raise ValueError(f"sample {member.sample} has {column} twice, the second time in {member.name}")
        content = read_text(opened, member, MAX_MEMBER_BYTES)
        columns[column] = content.strip() if kind == "cls" else content
    return columns | {name: value for name, value in cells.items() if value is not None or name not in columns}


def _plain(names: Sequence[str]) -> str:
    """The column of a member without a name of its own. It is the same one in every sample, whatever the others have."""
    return next((name for name in names if name.lower() in ("text", "txt")), next(iter(names), ""))
