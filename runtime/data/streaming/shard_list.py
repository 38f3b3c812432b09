"""The list of shards that `drivetrain shard` writes beside them, with their hashes.

    index.json   {"format": 1, "complete": true, "source": ..., "samples": ..., "shards": [{"name", "bytes", "sha256", "samples"}, ...]}

It says which shards belong to the data set, so a missing one is noticed, and what is in each, so a damaged one is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from runtime.data.streaming.shard import Shard
from runtime.errors import DataError

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
        shards = [asdict(each) for each in self.shards]
        samples = sum(each.samples for each in self.shards)
        found = {"format": FORMAT, "complete": self.complete, "source": self.source, "samples": samples}
        return (json.dumps(found | {"shards": shards}, indent=1) + "\n").encode()


def parse(content: bytes) -> ShardList | None:
    """The list that a file holds; None if it is another file of this name."""
    try:
        found: Any = json.loads(content)
        if found["format"] != FORMAT:
            return None
        shards = tuple(ListedShard(**each) for each in found["shards"])
        return ShardList(str(found["source"]), shards, found["complete"] is True)
    except (ValueError, TypeError, LookupError):
        return None


def listed(found: Sequence[Shard], content: bytes | None, where: str, key: str) -> list[Shard]:
    """The shards of a list with their hashes; all that were found if there is no list.

    Raises:
        DataError: if the list is not complete, or a shard is missing or has another size.
    """
    known = parse(content) if content is not None else None
    if known is None:
        return list(found)
    if not known.complete:
        raise DataError(
            f"{key}: the shards in {where} are not all written ({len(known.shards):,} are)",
            f"a folder that `drivetrain shard` has finished ({NAME} says so)",
            "run the same `drivetrain shard` again, which writes the rest",
        )
    there = {shard.name: shard for shard in found}
    for each in known.shards:
        shard = there.get(each.name)
        if shard is None or shard.size != each.bytes:
            what = "is missing" if shard is None else f"has {shard.size:,} bytes"
            raise DataError(
                f"{key}: shard {each.name} of {where} {what}",
                f"the shard that {NAME} lists, with {each.bytes:,} bytes",
                "copy it again, or run the same `drivetrain shard` again",
            )
    return [replace(there[each.name], sha256=each.sha256) for each in known.shards]
