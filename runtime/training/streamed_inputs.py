"""Compares the shards of a run that resumes with those that it started with, by size and time or ETag."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.errors import DataError

SHOWN = 5
"""Largest number of changes that are listed."""


def check(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> None:
    """Check that streamed shards are those that the run started with.

    Raises:
        DataError: if they are not; names them.
    """
    found = []
    for key, known in before.items():
        seen = now.get(key, {})
        found += [f"shard {name} is not there any more ({key})" for name in known if name not in seen]
        found += [f"shard {name} was not there ({key})" for name in seen if name not in known]
        found += [f"shard {name} has changed ({key})" for name in known if seen.get(name, known[name]) != known[name]]
    if found:
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        raise DataError(
            f"the streamed data has changed since the run started: {'; '.join(found[:SHOWN])}{more}",
            "shards with the size and the time, or ETag, that they had",
            "restore them, or start a new run with --new",
        )
