"""Shards: the files that a streamed data set is made of, and where they come from.

`drivetrain shard` writes a list of them beside them, with their hashes:

    index.json   {"format": 1, "complete": true, "source": ..., "samples": ..., "shards": [{"name", "bytes", "sha256", "samples"}, ...]}

It says which shards belong to the data set, so a missing one is noticed, and what is in each, so a damaged one is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job.text import TextJob
from drivetrain.system.files import parse_json

TAR, PARQUET, JSONL = ".tar", ".parquet", ".jsonl"
ENDINGS = {
    TAR: TAR,
    PARQUET: PARQUET,
    JSONL: JSONL,
    ".jsonl.gz": JSONL,
    ".jsonl.zst": JSONL,
    ".json.gz": JSONL,
    ".json.zst": JSONL,
}
"""Kind of a shard, by the ending of its name. A compressed .json is also read as one object per line, not as an array."""


@dataclass(frozen=True)
class Accepted:
    """The kinds of shards that a task reads."""

    kinds: tuple[str, ...]
    words: str
    """What is accepted, for messages."""

    def takes(self, name: str) -> bool:
        """Whether a file of this name is a shard of an accepted kind."""
        return kind(name) in self.kinds


IMAGES = Accepted((TAR, PARQUET), "a folder of .tar shards (WebDataset) or of .parquet files, or one such file")
TEXTS = Accepted(
    (TAR, PARQUET, JSONL),
    "a folder of .parquet files, of .jsonl files (also .jsonl.gz, .jsonl.zst) or of .tar shards (WebDataset), or one such file",
)


def accepted_by(job: Job) -> Accepted:
    """The kinds of shards that the task of a job reads."""
    return TEXTS if isinstance(job, TextJob) else IMAGES


def kind(name: str) -> str:
    """The kind of a shard by its name: `.tar`, `.parquet` or `.jsonl`; empty if it is none."""
    lower = name.lower()
    return next((shard_kind for ending, shard_kind in ENDINGS.items() if lower.endswith(ending)), "")


@dataclass(frozen=True)
class Shard:
    """One file of a streamed data set."""

    name: str
    """Path relative to the address that the spec names."""
    address: str
    """Absolute path or URL."""
    size: int
    """Bytes."""
    stamp: str
    """ETag, hash or mtime in nanoseconds: it changes with the content."""
    sha256: str = ""
    """Hex digest of the content, if a list of the shards has it."""
    place: str = ""
    """Inode and ctime of a file of this machine: they differ even for a copy that has the same size and mtime."""

    @property
    def kind(self) -> str:
        """`.tar`, `.parquet` or `.jsonl`."""
        return kind(self.name)

    def recorded(self) -> str:
        """Size and stamp in one text, as a run stores them."""
        return f"{self.size} {self.stamp}"

    def identify(self) -> str:
        """A text that changes whenever the content may have changed: part of the names of files in the cache."""
        return f"{self.recorded()} {self.sha256} {self.place}"


def unreadable_error(shard: Shard, key: str, error: Exception, possible: str) -> DataError:
    """The error for a shard whose content is not what `possible` says; `key` is the spec key that names it."""
    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
    return DataError(f"{key}: shard {shard.address} cannot be read: {reason}", possible, "write or copy it again")


class ShardStore(Protocol):
    """A place that shards are read from. Unless a store says otherwise, they are fetched, and no class names are declared."""

    def shards(self) -> list[Shard]:
        """All shards, sorted by name.

        Raises:
            DataError: if there are none, or they are of several kinds.
            StorageError: if the store cannot be reached.
        """
        ...

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Class names by column, for columns in which the shards have class numbers."""
        return {}

    def local(self, shard: Shard) -> Path | None:
        """The file of a shard on this machine; None if it has to be fetched."""
        return None

    def open_ranged(self, shard: Shard) -> RangedFile | None:
        """Open a shard of which only the parts that are read are fetched; None if it is a file of this machine."""
        return None

    def check(self, shard: Shard) -> None:
        """Check that the store still lists a shard with the same size and stamp.

        Raises:
            DataError: if it has changed or is gone.
            StorageError: if the store cannot be reached.
        """
        ...

    def fetch(self, shard: Shard, path: Path) -> None:
        """Write a shard to a file.

        Raises:
            DataError: if the shard has changed or is gone.
            StorageError: if it cannot be fetched, or the file cannot be written.
        """
        ...


LIST_NAME = "index.json"
FORMAT = 1


@dataclass(frozen=True)
class ListedShard:
    """One shard."""

    name: str
    bytes: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class ShardList:
    """The shards of a data set."""

    source: str
    """Digest of what they are made from."""
    shards: tuple[ListedShard, ...] = ()
    complete: bool = False

    def to_bytes(self) -> bytes:
        """The content of the file."""
        shards = [asdict(shard) for shard in self.shards]
        samples = sum(shard.samples for shard in self.shards)
        header = {"format": FORMAT, "complete": self.complete, "source": self.source, "samples": samples}
        return (json.dumps(header | {"shards": shards}, indent=1) + "\n").encode()


def parse_list(content: bytes) -> ShardList | None:
    """The list that a file holds; None if it is another file of this name."""
    try:
        document = parse_json(content, dict)
        if document["format"] != FORMAT:
            return None
        shards = tuple(ListedShard(**row) for row in document["shards"])
        return ShardList(str(document["source"]), shards, document["complete"] is True)
    except (ValueError, TypeError, LookupError):
        return None


def check_listed(present: Sequence[Shard], content: bytes | None, where: str, key: str) -> list[Shard]:
    """The shards of a list with their hashes; all that were found if there is no list.

    Raises:
        DataError: if the list is not complete, or a shard is missing or has another size.
    """
    shard_list = parse_list(content) if content is not None else None
    if shard_list is None:
        return list(present)
    if not shard_list.complete:
        raise DataError(
            f"{key}: the shards in {where} are not all written ({len(shard_list.shards):,} are)",
            f"a folder that `drivetrain shard` has finished ({LIST_NAME} says so)",
            "run the same `drivetrain shard` again, which writes the rest",
        )
    present_by_name = {shard.name: shard for shard in present}
    for entry in shard_list.shards:
        shard = present_by_name.get(entry.name)
        if shard is None or shard.size != entry.bytes:
            difference = "is missing" if shard is None else f"has {shard.size:,} bytes"
            raise DataError(
                f"{key}: shard {entry.name} of {where} {difference}",
                f"the shard that {LIST_NAME} lists, with {entry.bytes:,} bytes",
                "copy it again, or run the same `drivetrain shard` again",
            )
    return [replace(present_by_name[entry.name], sha256=entry.sha256) for entry in shard_list.shards]


TAIL_BYTES = 64 << 10
"""Bytes at the end that come with the first read there: what Parquet readers ask for is mostly in them."""


class NoRangesError(Exception):
    """A server sends the whole file for a part of it."""


class RangedFile(io.RawIOBase):
    """A shard in a store of which only the parts that are read are fetched.

    Args:
        size: bytes of the whole file.
        get: some bytes of it: from where on, and how many.
    """

    def __init__(self, size: int, get: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self.size, self._get, self._place = size, get, 0
        self._parts: list[tuple[int, bytes]] = []
        """What was fetched: it is small, and the end of a Parquet file is read several times."""

    @property
    def fetched(self) -> int:
        """Bytes that were fetched."""
        return sum(len(content) for _, content in self._parts)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes; fewer only at the end."""
        count = max(0, min(len(buffer), self.size - self._place))
        if count:
            buffer[:count] = self._read(self._place, count)
            self._place += count
        return count

    def _read(self, start: int, count: int) -> bytes:
        for begin, content in self._parts:
            if begin <= start and start + count <= begin + len(content):
                return content[start - begin : start - begin + count]
        begin = min(start, max(0, self.size - TAIL_BYTES)) if start + count > self.size - TAIL_BYTES else start
        end = self.size if begin < start or begin >= self.size - TAIL_BYTES else start + count
        self._parts.append((begin, self._get(begin, end - begin)))
        return self._parts[-1][1][start - begin : start - begin + count]
