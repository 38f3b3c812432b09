"""Shards in an object store, fetched whole, and compared with what was indexed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from drivetrain.data.streaming import shard_list
from drivetrain.data.streaming.local_store import changed_shard_error, usable
from drivetrain.data.streaming.ranged_file import RangedFile
from drivetrain.data.streaming.shard import IMAGES, Accepted, Shard
from drivetrain.errors import DataError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.system.files import storage_error

PATIENCE = Patience()


@dataclass
class RemoteStore:
    """The shards below an address, or the one that it names."""

    address: RemoteAddress
    key: str
    """The spec key that names it."""
    accepted: Accepted = IMAGES
    opened: dict[int, ObjectStore] = field(default_factory=dict, repr=False)
    """By process: a client does not survive a fork."""
    patience: Patience | None = None
    """Of the requests; None for PATIENCE."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"opened": {}}

    @property
    def single(self) -> bool:
        """Whether the address is that of a shard."""
        return self.accepted.takes(self.address.name)

    def shards(self) -> list[Shard]:
        """All shards, by name."""
        if self.single:
            try:
                entries = [self._store().head(self.address.name)]
            except RemoteError as error:
                if error.trouble is not Trouble.MISSING:
                    raise
                entries = []
        else:
            entries = [entry for entry in self._store().objects() if "/" not in entry.name]
        files = [entry for entry in entries if self.accepted.takes(entry.name)]
        folder = self.address.parent if self.single else self.address
        all_shards = [Shard(entry.name, str(folder / entry.name), entry.bytes, entry.tag) for entry in files]
        listing = any(entry.name == shard_list.NAME for entry in entries)
        content = self._store().get(shard_list.NAME) if listing else None
        listed = shard_list.check_listed(all_shards, content, str(self.address), self.key)
        return usable(listed, str(self.address), self.key, self.accepted)

    def class_names(self) -> Mapping[str, Sequence[str]]:
        """None but those in the shards."""
        return {}

    def local(self, shard: Shard) -> Path | None:
        """None: all are fetched."""
        return None

    def open_ranged(self, shard: Shard) -> RangedFile | None:
        """A shard that is read by ranges."""
        return RangedFile(shard.size, partial(self._store().get_range, shard.name))

    def check(self, shard: Shard) -> None:
        """By size and ETag of the object."""
        try:
            now = self._store().head(shard.name)
        except RemoteError as error:
            if error.trouble is Trouble.MISSING:
                raise changed_shard_error(shard, "is not there any more") from None
            raise
        if (now.bytes, now.tag) != (shard.size, shard.stamp):
            raise changed_shard_error(shard, "has changed since it was indexed")

    def fetch(self, shard: Shard, path: Path) -> None:
        """Download a shard."""
        store = self._store()
        try:
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for piece in store.stream(shard.name):
                    file.write(piece)
                    digest.update(piece)
        except RemoteError as error:
            if error.trouble is Trouble.MISSING:
                raise changed_shard_error(shard, "is not there any more") from None
            raise
        except OSError as error:
            raise storage_error(path, error) from None
        self.check(shard)
        if shard.sha256 and digest.hexdigest() != shard.sha256:
            raise changed_shard_error(shard, f"has another content than {shard_list.NAME} says")
        if (size := path.stat().st_size) != shard.size:
            raise DataError(
                f"shard {shard.address} came with {size:,} bytes",
                f"its {shard.size:,} bytes",
                "check the store and the network",
            )

    def check_read(self, shard: Shard) -> None:
        """Read a byte of a shard.

        Raises:
            RemoteError: if the store does not give it.
        """
        self._store().get_range(shard.name, 0, 1)

    def _store(self) -> ObjectStore:
        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = ObjectStore(
                self.address.parent if self.single else self.address, self.patience or PATIENCE
            )
        return self.opened[os.getpid()]
