"""The list of shards that `drivetrain shard` writes beside them, with their hashes.

    index.json   {"format": 1, "complete": true, "source": ..., "samples": ..., "shards": [{"name", "bytes", "sha256", "samples"}, ...]}

It says which shards belong to the data set, so a missing one is noticed, and what is in each, so a damaged one is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from drivetrain.data.streaming.shard import Shard
from drivetrain.errors import DataError

NAME = "index.json"
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


def parse(content: bytes) -> ShardList | None:
    """The list that a file holds; None if it is another file of this name."""
    try:
        document: Any = json.loads(content)
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
    shard_list = parse(content) if content is not None else None
    if shard_list is None:
        return list(present)
    if not shard_list.complete:
        raise DataError(
            f"{key}: the shards in {where} are not all written ({len(shard_list.shards):,} are)",
            f"a folder that `drivetrain shard` has finished ({NAME} says so)",
            "run the same `drivetrain shard` again, which writes the rest",
        )
    present_by_name = {shard.name: shard for shard in present}
    for entry in shard_list.shards:
        shard = present_by_name.get(entry.name)
        if shard is None or shard.size != entry.bytes:
            difference = "is missing" if shard is None else f"has {shard.size:,} bytes"
            raise DataError(
                f"{key}: shard {entry.name} of {where} {difference}",
                f"the shard that {NAME} lists, with {entry.bytes:,} bytes",
                "copy it again, or run the same `drivetrain shard` again",
            )
    return [replace(present_by_name[entry.name], sha256=entry.sha256) for entry in shard_list.shards]
