"""Where shards are: files of this machine, an object store, or a dataset of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from drivetrain.data.formats import shards as tables
from drivetrain.data.formats.table_paths import WORDS
from drivetrain.data.streaming.shard import (
    IMAGES,
    LIST_NAME,
    Accepted,
    NoRangesError,
    RangedFile,
    Shard,
    ShardStore,
    check_listed,
)
from drivetrain.errors import DataError, StorageError
from drivetrain.job.hub_address import HubAddress
from drivetrain.pretrained import hub_connection, hub_download
from drivetrain.pretrained.hub_cache import HubFile, find_repository
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_error import DATASET, HubError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.system.console import say
from drivetrain.system.files import hash_file, storage_error

PATIENCE = Patience()
"""Retries and timeouts of requests to an object store unless others are set."""
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
        return _check_usable(listed, str(self.path), self.key, self.accepted)

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


def _stat_shard(folder: Path, file: Path) -> Shard:
    status = file.stat()
    address = os.path.abspath(file)
    identity = f"{status.st_ino} {status.st_ctime_ns}"
    return Shard(os.path.relpath(file, folder), address, status.st_size, str(status.st_mtime_ns), place=identity)


@dataclass
class RemoteStore(ShardStore):
    """The shards directly below an address, or the one shard that it names."""

    address: RemoteAddress
    key: str
    """The spec key that names the address."""
    accepted: Accepted = IMAGES
    opened: dict[int, ObjectStore] = field(default_factory=dict, repr=False)
    """Client of each process, by process id: a client does not survive a fork."""
    patience: Patience | None = None
    """Retries and timeouts of requests; None for PATIENCE."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"opened": {}}

    @property
    def single(self) -> bool:
        """Whether the address names one shard, not a folder."""
        return self.accepted.takes(self.address.name)

    def shards(self) -> list[Shard]:
        """All shards, sorted by name."""
        if self.single:
            head = self._store().find_head(self.address.name)
            entries = [head] if head else []
        else:
            entries = [entry for entry in self._store().objects() if "/" not in entry.name]
        files = [entry for entry in entries if self.accepted.takes(entry.name)]
        folder = self.address.parent if self.single else self.address
        all_shards = [Shard(entry.name, str(folder / entry.name), entry.bytes, entry.tag) for entry in files]
        has_list = any(entry.name == LIST_NAME for entry in entries)
        list_content = self._store().get(LIST_NAME) if has_list else None
        listed = check_listed(all_shards, list_content, str(self.address), self.key)
        return _check_usable(listed, str(self.address), self.key, self.accepted)

    def open_ranged(self, shard: Shard) -> RangedFile | None:
        """A shard of which only the parts that are read are fetched."""
        return RangedFile(shard.size, partial(self._store().get_range, shard.name))

    def check(self, shard: Shard) -> None:
        """Check size and ETag of the object."""
        present_entry = self._store().find_head(shard.name)
        if present_entry is None:
            raise changed_shard_error(shard, "is not there any more")
        if (present_entry.bytes, present_entry.tag) != (shard.size, shard.stamp):
            raise changed_shard_error(shard, "has changed since it was indexed")

    def fetch(self, shard: Shard, path: Path) -> None:
        """Download a shard and check its hash and size."""
        store = self._store()
        try:
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for chunk in store.stream(shard.name):
                    file.write(chunk)
                    digest.update(chunk)
        except RemoteError as error:
            if error.trouble is Trouble.MISSING:
                raise changed_shard_error(shard, "is not there any more") from None
            raise
        except OSError as error:
            raise storage_error(path, error) from None
        self.check(shard)
        if shard.sha256 and digest.hexdigest() != shard.sha256:
            raise changed_shard_error(shard, f"has another content than {LIST_NAME} says")
        if (size := path.stat().st_size) != shard.size:
            raise DataError(
                f"shard {shard.address} came with {size:,} bytes",
                f"its {shard.size:,} bytes",
                "check the store and the network",
            )

    def check_read(self, shard: Shard) -> None:
        """Read a byte of a shard; raises RemoteError if the store refuses it or cannot be reached."""
        self._store().get_range(shard.name, 0, 1)

    def _store(self) -> ObjectStore:
        """The client of this process."""
        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = ObjectStore(
                self.address.parent if self.single else self.address, self.patience or PATIENCE
            )
        return self.opened[os.getpid()]


@dataclass(frozen=True)
class HubStore(ShardStore):
    """The shards of a table or of a folder of a dataset."""

    address: HubAddress
    """At a commit, whose files are listed in the cache of the hub."""
    key: str
    """The spec key that names it."""
    accepted: Accepted = IMAGES

    def shards(self) -> list[Shard]:
        """All shards, by name."""
        all_shards = [
            Shard(
                posixpath.basename(file.name),
                str(self.address.below(file.name)),
                file.size,
                file.hash,
                file.hash if len(file.hash) == 64 else "",
            )
            for file in sorted(self._files(), key=lambda file: file.name)
        ]
        return _check_usable(all_shards, str(self.address), self.key, self.accepted)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Those that README.md declares."""
        readme = find_repository(self.address.name, DATASET).read_readme(self.address.revision)
        return tables.parse_declared_names(readme, Path(self.address.path))

    def open_ranged(self, shard: Shard) -> RangedFile | None:
        """A shard that is read by ranges."""
        return RangedFile(shard.size, partial(self._range, shard))

    def check(self, shard: Shard) -> None:
        """By the list of the commit, which does not change."""
        self._file(shard)

    def fetch(self, shard: Shard, path: Path) -> None:
        """Download a shard."""
        file = self._file(shard)
        try:
            path.unlink(missing_ok=True)
            hub_download.receive(self._connect(), self.address.revision, file, path, hub_download.Progress())
        except HubError as error:
            raise StorageError(f"shard {shard.address}: {error.given}", error.possible, error.action) from None
        except OSError as error:
            raise storage_error(path, error) from None

    def _range(self, shard: Shard, start: int, count: int) -> bytes:
        file = self._file(shard)
        try:
            content = hub_download.read_range(self._connect(), self.address.revision, file, start, count)
        except HubError as error:
            raise StorageError(f"shard {shard.address}: {error.given}", error.possible, error.action) from None
        if content is None:
            raise NoRangesError
        return content

    def _connect(self) -> Connection:
        return hub_connection.connect(self.address.name, DATASET, say)

    def _file(self, shard: Shard) -> HubFile:
        hub_file = next((file for file in self._files() if posixpath.basename(file.name) == shard.name), None)
        if hub_file is None or (hub_file.size, hub_file.hash) != (shard.size, shard.stamp):
            raise changed_shard_error(shard, "is not in the list of its commit any more")
        return hub_file

    def _files(self) -> list[HubFile]:
        listed = find_repository(self.address.name, DATASET).read_listing(self.address.revision) or []
        every = {file.name: file for file in listed}
        if self.address.path in every:
            return [every[name] for name in tables.siblings(self.address.path, list(every))]
        inside = (file for name, file in every.items() if posixpath.dirname(name) == self.address.path)
        return [file for file in inside if self.accepted.takes(file.name)]


def _check_usable(shards: list[Shard], where: str, key: str, accepted: Accepted) -> list[Shard]:
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
