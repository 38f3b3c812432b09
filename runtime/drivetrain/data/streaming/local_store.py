"""Shards that are files of this machine: a folder of them, or a single one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.data.formats import shards as tables
from drivetrain.data.formats.table_paths import WORDS
from drivetrain.data.streaming.shard import IMAGES, LIST_NAME, Accepted, Shard, ShardStore, check_listed
from drivetrain.errors import DataError
from drivetrain.system.files import hash_file, storage_error

_NOT_LETTERS = re.compile(r"[^a-z]+")


@dataclass(frozen=True)
class LocalStore(ShardStore):
    """The shards at a path."""

    path: Path
    key: str
    """The spec key that names the path."""
    accepted: Accepted = IMAGES

    def shards(self) -> list[Shard]:
        """All shards, sorted by name."""
        if self.path.is_dir():
            visible = (entry for entry in self.path.iterdir() if not entry.name.startswith("."))
            folder, files = self.path, sorted(f for f in visible if self.accepted.takes(f.name) and f.is_file())
        elif self.path.is_file():
            folder, files = self.path.parent, tables.files(self.path, self.key)
        else:
            folder, files = self.path, []
        all_shards = [_stat_shard(folder, file) for file in files]
        list_file = folder / LIST_NAME
        list_content = list_file.read_bytes() if self.path.is_dir() and list_file.is_file() else None
        listed = check_listed(all_shards, list_content, str(self.path), self.key)
        return check_usable(listed, str(self.path), self.key, self.accepted)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Class names by column, if the path is a dataset in the cache of the hub."""
        return tables.find_declared_names(self.path)

    def local(self, shard: Shard) -> Path | None:
        """The file of the shard."""
        return Path(shard.address)

    def check(self, shard: Shard) -> None:
        """Check size and mtime of the file."""
        try:
            status = os.stat(shard.address)
        except OSError:
            raise changed_shard_error(shard, "is not there any more") from None
        if (status.st_size, str(status.st_mtime_ns)) != (shard.size, shard.stamp):
            raise changed_shard_error(shard, "has changed since it was indexed")

    def fetch(self, shard: Shard, path: Path) -> None:
        """Copy the file."""
        try:
            shutil.copyfile(shard.address, path)
        except FileNotFoundError:
            raise changed_shard_error(shard, "is not there any more") from None
        except OSError as error:
            raise storage_error(path, error) from None
        self.check(shard)


def check_usable(shards: list[Shard], where: str, key: str, accepted: Accepted) -> list[Shard]:
    """Return the shards after checking that they are of one kind and one split, and not empty.

    Raises:
        DataError: if they are not.
    """
    kinds = sorted({shard.kind for shard in shards})
    if not shards or not accepted.takes(shards[0].name):
        raise DataError(
            f"{key}: no shards in {where}",
            accepted.words,
            "correct the path, write shards with `drivetrain shard SOURCE --to FOLDER`, or remove data.stream",
        )
    if len(kinds) > 1:
        raise DataError(
            f"{key}: {where} has {' and '.join(kinds)} files ({shards[0].name}, ...)",
            "shards of one kind",
            "move the others elsewhere",
        )
    if empty := next((shard.name for shard in shards if not shard.size), None):
        raise DataError(
            f"{key}: shard {empty} of {where} is empty (0 bytes)", accepted.words, "write it again, or remove it"
        )
    check_one_split([shard.name for shard in shards], where, key)
    return shards


def check_content(shard: Shard) -> None:
    """Check a local shard against its hash in index.json, if it has one; raises DataError if it has another content."""
    try:
        differs = bool(shard.sha256) and hash_file(Path(shard.address)) != shard.sha256
    except OSError:
        raise changed_shard_error(shard, "cannot be read any more") from None
    if differs:
        raise changed_shard_error(shard, f"has another content than {LIST_NAME} says")


def changed_shard_error(shard: Shard, change: str) -> DataError:
    """The error for a shard that changed or is gone; `change` completes "shard ADDRESS ..."."""
    return DataError(
        f"shard {shard.address} {change}",
        "shards that stay as they are while a run trains on them",
        "restore it, or start a new run with --new",
    )


def _stat_shard(folder: Path, file: Path) -> Shard:
    status = file.stat()
    address = os.path.abspath(file)
    identity = f"{status.st_ino} {status.st_ctime_ns}"
    return Shard(os.path.relpath(file, folder), address, status.st_size, str(status.st_mtime_ns), place=identity)


def check_one_split(names: Sequence[str], where: str, key: str) -> None:
    """Check that the names of shards in one place name one split at most: the others would be trained on too.

    Raises:
        DataError: if they name several splits.
    """
    name_by_split: dict[str, str] = {}
    words_by_name = [set(_NOT_LETTERS.split(name.lower())) for name in names]
    # Words of every name say nothing about a split: "crash-test-train-0.tar" may belong to a data set "crash-test".
    common = set.intersection(*words_by_name) if words_by_name else set()
    for name, name_words in zip(names, words_by_name, strict=True):
        for split in (split for split, split_words in WORDS.items() if (name_words - common) & set(split_words)):
            name_by_split.setdefault(split, name)
    if len(name_by_split) > 1:
        raise DataError(
            f"{key}: the shards in {where} are of several splits: {', '.join(name_by_split.values())}",
            "shards of one split at one place",
            "move those of the others to places of their own, and name them with data.validation",
        )
