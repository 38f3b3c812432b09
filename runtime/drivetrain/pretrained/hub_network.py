"""Fetches a network by its name on the Hugging Face hub: configuration, vocabulary, and the weights in one format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from drivetrain.pretrained import families, hub, hub_cache
from drivetrain.pretrained.hub import PICKLE, Fetched
from drivetrain.pretrained.hub_error import NETWORK, HubError
from drivetrain.system.console import say as say_line

MAIN = "main"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_CONFIGURATION = re.compile(r"[\w+-][\w.+-]*\.(json|txt|model)")
"""Names of configurations and vocabularies."""
_SHARD = re.compile(r"model-\d+-of-(?P<count>\d{5})\.safetensors")
_POSSIBLE = f"a network of transformers: {CONFIG}, and {WEIGHTS} or {PICKLE}"


def fetch(name: str, revision: str, say: Callable[[str], None] = say_line, *, update: bool = False) -> Fetched:
    """Fetch a network from the cache or, if it is not there, from the hub.

    Args:
        name: its name, such as `google-bert/bert-base-cased`.
        revision: a branch, a tag or a commit.
        update: whether to ask the hub for the current commit of a branch or tag, whatever the cache has.

    Raises:
        HubError: if there is none, or it cannot be downloaded or used.
        StorageError: if the cache cannot be written.
    """
    repository = hub_cache.find_repository(name, NETWORK)
    return hub.fetch(repository, revision, _choose_files, say, update=update)


def _choose_files(paths: Sequence[str], readme: str) -> list[str]:
    """Choose the files that are needed.

    Raises:
        HubError: if these are not the files of a network that can be used.
    """
    names = [path for path in paths if "/" not in path]
    if CONFIG not in names:
        raise HubError(f"has no {CONFIG}", _POSSIBLE, "use another network")
    configuration = [name for name in names if _CONFIGURATION.fullmatch(name)]
    configuration += [path for path in paths if path == families.POOLING_FILE]
    if WEIGHTS in names:
        return [*(name for name in configuration if name != INDEX), WEIGHTS]
    if INDEX in names and (shards := [shard for name in names if (shard := _SHARD.fullmatch(name))]):
        missing = [_find_missing(count, set(names)) for count in sorted({shard["count"] for shard in shards})]
        if all(missing):
            raise HubError(f"lacks {missing[0]}", _POSSIBLE, "use another network")
        return [*configuration, *(shard[0] for shard in shards)]
    if PICKLE in names:
        return [*configuration, PICKLE]
    suffixes = (".safetensors", ".bin", ".h5", ".msgpack", ".gguf")
    other_weights = ", ".join(sorted(name for name in names if name.endswith(suffixes))[:4])
    raise HubError(
        f"has no weights that can be used; it has {other_weights or 'none'}", _POSSIBLE, "use another network"
    )


def _find_missing(count: str, names: set[str]) -> str:
    """The first missing one of so many shards; empty if all are there."""
    shards = (f"model-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1))
    return next((shard for shard in shards if shard not in names), "")
