"""The records of a tar shard of texts (WebDataset): what the members of a sample say, by column.

    0001.txt  0001.cls        the text column that is called text or txt, else the first one; the first label column
    0002.json                 {"title": ..., "text": ..., "topic": ...}: columns by their names
    0003.title.txt  0003.text.txt  0003.topic.cls     columns by their names

What a .json says comes before the content of a .txt or .cls.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from drivetrain.data.streaming import tar_members
from drivetrain.data.streaming.shard import Shard, unreadable_error
from drivetrain.data.streaming.tar_members import Member

POSSIBLE = "a complete tar file without compression, whose members are .txt with .cls, or .json with texts and labels"
MAX_MEMBER_BYTES = 64 << 20
"""Bytes of the largest member."""


def read(file: Path, shard: Shard, key: str, texts: Sequence[str], labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All samples of a shard, in the order of their first members.

    Args:
        file: the shard on this machine.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        samples: dict[str, list[Member]] = {}
        for member in tar_members.members(file):
            if member.ending.rpartition(".")[2] in ("txt", "cls", "json"):
                samples.setdefault(member.sample, []).append(member)
        with file.open("rb") as opened:
            for members in samples.values():
                yield _record(opened, members, texts, labels)
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise unreadable_error(shard, key, error, POSSIBLE) from None


def _record(opened: BinaryIO, members: Sequence[Member], texts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    cells: dict[str, Any] = {}
    for member in members:
        name, _, kind = member.ending.rpartition(".")
        if kind == "json":
            cells |= tar_members.read_object(opened, member, MAX_MEMBER_BYTES)
            continue
        names = texts if kind == "txt" else labels
        # Endings are compared in small letters, since names of files may be in any.
        column = next((candidate for candidate in names if candidate.lower() == name), "") if name else _plain(names)
        if not column:
            continue
        if column in columns:
            raise ValueError(f"sample {member.sample} has {column} twice, the second time in {member.name}")
        content = tar_members.read_text(opened, member, MAX_MEMBER_BYTES)
        columns[column] = content.strip() if kind == "cls" else content
    return columns | {name: value for name, value in cells.items() if value is not None or name not in columns}


def _plain(names: Sequence[str]) -> str:
    """The column of a member without a name of its own. It is the same one in every sample, whatever the others have."""
    return next((name for name in names if name.lower() in ("text", "txt")), next(iter(names), ""))
