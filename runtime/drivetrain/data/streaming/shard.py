"""Shards: the files that a streamed data set is made of, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drivetrain.data.streaming.ranged_file import RangedFile
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job.text import TextJob

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
