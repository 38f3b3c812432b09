"""Shards of a dataset on the Hugging Face hub, at a commit: fetched one by one, and compared with their hashes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drivetrain.data.formats import shards
from drivetrain.data.streaming.local_store import changed_shard_error, check_usable
from drivetrain.data.streaming.ranged_file import NoRangesError, RangedFile
from drivetrain.data.streaming.shard import IMAGES, Accepted, Shard, ShardStore
from drivetrain.errors import StorageError
from drivetrain.job.hub_address import HubAddress
from drivetrain.pretrained import hub_connection, hub_download
from drivetrain.pretrained.hub_cache import HubFile, find_repository
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_error import DATASET, HubError
from drivetrain.system.console import say
from drivetrain.system.files import storage_error


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
        return check_usable(all_shards, str(self.address), self.key, self.accepted)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Those that README.md declares."""
        readme = find_repository(self.address.name, DATASET).read_readme(self.address.revision)
        return shards.parse_declared_names(readme, Path(self.address.path))

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
            return [every[name] for name in shards.siblings(self.address.path, list(every))]
        inside = (file for name, file in every.items() if posixpath.dirname(name) == self.address.path)
        return [file for file in inside if self.accepted.takes(file.name)]
