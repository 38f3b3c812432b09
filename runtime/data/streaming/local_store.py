"""Shards in a folder of this machine, or a single one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.data.formats import hub_classes
from runtime.data.formats import shards as tables
from runtime.data.streaming import shard_list, split_words
from runtime.data.streaming.ranged_file import RangedFile
from runtime.data.streaming.shard import IMAGES, Accepted, Shard
from runtime.errors import DataError
from runtime.system.files import sha256, storage_error


@dataclass(frozen=True)
class LocalStore:
    """The shards at a path."""

    path: Path
    key: str
    """The spec key that names it."""
    accepted: Accepted = IMAGES

    def shards(self) -> list[Shard]:
        """All shards, by name."""
        if self.path.is_dir():
            folder, files = self.path, sorted(each for each in self.path.iterdir() if self._is_shard(each))
        elif self.path.is_file():
            folder, files = self.path.parent, tables.files(self.path, self.key)
        else:
            folder, files = self.path, []
        found = [_shard(folder, file) for file in files]
        index = folder / shard_list.NAME
        content = index.read_bytes() if self.path.is_dir() and index.is_file() else None
        listed = shard_list.listed(found, content, str(self.path), self.key)
        return usable(listed, str(self.path), self.key, self.accepted)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Those of a dataset in the cache of the hub."""
        return hub_classes.known(self.path)

    def local(self, shard: Shard) -> Path | None:
        """The file itself."""
        return Path(shard.address)

    def ranged(self, shard: Shard) -> RangedFile | None:
        """None: it is read where it is."""
        return None

    def check(self, shard: Shard) -> None:
        """By size and time of the file."""
        check(shard)

    def fetch(self, shard: Shard, path: Path) -> None:
        """Copy the file."""
        try:
            shutil.copyfile(shard.address, path)
        except FileNotFoundError:
            raise changed(shard, "is not there any more") from None
        except OSError as error:
            raise storage_error(path, error) from None
        check(shard)

    def _is_shard(self, file: Path) -> bool:
        return self.accepted.takes(file.name) and not file.name.startswith(".") and file.is_file()


def usable(found: list[Shard], where: str, key: str, accepted: Accepted) -> list[Shard]:
    """The shards, checked: of one kind and one split, and not empty.

    Raises:
        DataError: if they are not.
    """
    kinds = sorted({shard.kind for shard in found})
    if not found or not accepted.takes(found[0].name):
        raise DataError(
            f"{key}: no shards in {where}",
            accepted.words,
            "correct the path, write shards with `drivetrain shard SOURCE --to FOLDER`, or remove data.stream",
        )
    if len(kinds) > 1:
        raise DataError(
            f"{key}: {where} has {' and '.join(kinds)} files ({found[0].name}, ...)",
            "shards of one kind",
            "move the others elsewhere",
        )
    if empty := next((shard.name for shard in found if not shard.size), None):
        raise DataError(
            f"{key}: shard {empty} of {where} is empty (0 bytes)", accepted.words, "write it again, or remove it"
        )
    split_words.check([shard.name for shard in found], where, key)
    return found


def check(shard: Shard) -> None:
    """Check that a local shard is as it was indexed.

    Raises:
        DataError: if it has changed or is gone.
    """
    try:
        seen = os.stat(shard.address)
    except OSError:
        raise changed(shard, "is not there any more") from None
    if (seen.st_size, str(seen.st_mtime_ns)) != (shard.size, shard.stamp):
        raise changed(shard, "has changed since it was indexed")


def check_content(shard: Shard) -> None:
    """Check a local shard against the hash that a list has of it.

    Raises:
        DataError: if it has another content.
    """
    try:
        other = bool(shard.sha256) and sha256(Path(shard.address)) != shard.sha256
    except OSError:
        raise changed(shard, "cannot be read any more") from None
    if other:
        raise changed(shard, f"has another content than {shard_list.NAME} says")


def changed(shard: Shard, what: str) -> DataError:
    """The error for a shard that is not what it was."""
    return DataError(
        f"shard {shard.address} {what}",
        "shards that stay as they are while a run trains on them",
        "restore it, or start a new run with --new",
    )


def _shard(folder: Path, file: Path) -> Shard:
    seen = file.stat()
    address = os.path.abspath(file)
    place = f"{seen.st_ino} {seen.st_ctime_ns}"
    return Shard(os.path.relpath(file, folder), address, seen.st_size, str(seen.st_mtime_ns), place=place)
