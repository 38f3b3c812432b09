"""Shards in an object store: whole shards are fetched, and compared with what was indexed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from drivetrain.data.streaming.local_store import changed_shard_error, check_usable
from drivetrain.data.streaming.ranged_file import RangedFile
from drivetrain.data.streaming.shard import IMAGES, LIST_NAME, Accepted, Shard, ShardStore, check_listed
from drivetrain.errors import DataError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.system.files import storage_error

PATIENCE = Patience()
"""Retries and timeouts of requests unless others are set."""


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
        return check_usable(listed, str(self.address), self.key, self.accepted)

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
