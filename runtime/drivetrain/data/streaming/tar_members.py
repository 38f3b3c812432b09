"""The members of a tar shard, by sample: members with the same name up to its first dot are one (WebDataset)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

EXTENSIONS = (
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
        if self.type in EXTENSIONS and not 0 <= self.size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"the header of a member says that {self.size:,} bytes of names follow")
        return super()._proc_member(file)  # type: ignore[misc, no-any-return]


def members(file: Path) -> Iterator[Member]:
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
        content = json.loads(read_text(opened, member, max_bytes))
    except json.JSONDecodeError as error:
        raise ValueError(f"{member.name} line {error.lineno}, column {error.colno}: {error.msg.lower()}") from None
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
