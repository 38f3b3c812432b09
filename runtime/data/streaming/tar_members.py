"""The members of a tar shard, by sample: members with the same name up to its first dot are one (WebDataset)."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime.data.streaming.shard import Shard
from runtime.errors import DataError


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


def members(file: Path) -> Iterator[Member]:
    """All files of a tar file that belong to a sample.

    Raises:
        ValueError, EOFError, tarfile.TarError: if it is no tar file, or is cut off.
    """
    with tarfile.open(file, "r:") as opened:
        end = 0
        for found in opened:
            if found.isfile() and (member := _member(found)):
                yield member
            end = found.offset_data + -(-found.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE * found.isfile()
    _check_end(file, end)


def unreadable(shard: Shard, key: str, error: Exception, possible: str) -> DataError:
    """The error for a tar shard that cannot be used."""
    return DataError(f"{key}: shard {shard.address} cannot be read: {error}", possible, "write or copy it again")


def _member(found: tarfile.TarInfo) -> Member | None:
    path = PurePosixPath(found.name)
    stem, dot, ending = path.name.partition(".")
    if not stem or not dot:
        return None
    return Member(found.name, str(path.parent / stem), ending.lower(), found.offset_data, found.size)


def _check_end(file: Path, end: int) -> None:
    """Check that zeros mark the end: tarfile takes a file that is cut off between two members for a whole one."""
    with file.open("rb") as opened:
        opened.seek(end)
        if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError("it is cut off")
