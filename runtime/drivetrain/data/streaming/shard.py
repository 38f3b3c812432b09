"""Shards: the files that a streamed data set is made of, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drivetrain.data.streaming.ranged_file import RangedFile

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
"""The kind of a shard, by the ending of its name. A compressed .json has one object in each line, too: an array is not split."""


@dataclass(frozen=True)
class Accepted:
    """The kinds of shards that a task reads."""

    kinds: tuple[str, ...]
    words: str

    def takes(self, name: str) -> bool:
        """Whether a file of this name is such a shard."""
        return kind(name) in self.kinds


IMAGES = Accepted((TAR, PARQUET), "a folder of .tar shards (WebDataset) or of .parquet files, or one such file")
TEXTS = Accepted(
    (TAR, PARQUET, JSONL),
    "a folder of .parquet files, of .jsonl files (also .jsonl.gz, .jsonl.zst) or of .tar shards (WebDataset), or one such file",
)


def kind(name: str) -> str:
    """The kind of a shard by its name: `.tar`, `.parquet` or `.jsonl`; empty if it is none."""
    lower = name.lower()
    return next((shard_kind for ending, shard_kind in ENDINGS.items() if lower.endswith(ending)), "")


@dataclass(frozen=True)
class Shard:
    """One file of a streamed data set."""

    name: str
    """Relative to the address that the spec names."""
    address: str
    """Absolute path or URL."""
    size: int
    """Bytes."""
    stamp: str
    """ETag, or mtime in nanoseconds: another one means other content."""
    sha256: str = ""
    """Hex digest of the content, if a list of the shards has it."""

    place: str = ""
    """Inode and time of its last change of any kind, of a file of this machine: a copy has the same size and mtime."""

    @property
    def kind(self) -> str:
        """`.tar`, `.parquet` or `.jsonl`."""
        return kind(self.name)

    def recorded(self) -> str:
        """Size and stamp, as a run stores them."""
        return f"{self.size} {self.stamp}"

    def identify(self) -> str:
        """All that tells its content from another one, for what this machine keeps of it."""
        return f"{self.recorded()} {self.sha256} {self.place}"


class ShardStore(Protocol):
    """Where shards are read from."""

    def shards(self) -> list[Shard]:
        """All shards, by name.

        Raises:
            DataError: if there are none, or of several kinds.
            StorageError: if the store cannot be reached.
        """
        ...

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Names of classes by column, for shards that have numbers in it."""
        ...

    def local(self, shard: Shard) -> Path | None:
        """The file of a shard on this machine; None if it has to be fetched."""
        ...

    def open_ranged(self, shard: Shard) -> RangedFile | None:
        """A shard of which only what is read is fetched; None if it is a file of this machine."""
        ...

    def check(self, shard: Shard) -> None:
        """Check that a shard is still as it was listed, by what the store says of it.

        Raises:
            DataError: if it has changed or is gone.
            StorageError: if the store cannot be reached.
        """
        ...

    def fetch(self, shard: Shard, path: Path) -> None:
        """Write a shard to a file.

        Raises:
            DataError: if the shard has changed or is gone.
            StorageError: if it cannot be fetched, or the file not be written.
        """
        ...
