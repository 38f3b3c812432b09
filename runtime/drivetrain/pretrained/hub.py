"""Fetches a network by its name on the Hugging Face hub once; later runs use the cache and need no network.

A revision is resolved to a commit once. Every file is compared with its hash before it gets its final name. If a
repository has only a pickle, it is converted in an isolated process. Code in a repository is neither fetched nor run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from drivetrain.errors import DataError, StorageError
from drivetrain.pretrained import convert as converting
from drivetrain.pretrained import families, hub_cache, hub_connection, hub_listing
from drivetrain.pretrained.hub_cache import Repository, Snapshot
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_download import HubFile, Progress, download
from drivetrain.pretrained.hub_error import HubError
from drivetrain.system.console import say as say_line
from drivetrain.system.files import hash_file, read_json

MAIN = "main"
CONFIG, WEIGHTS, INDEX, PICKLE = "config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_CONFIGURATION = re.compile(r"[\w+-][\w.+-]*\.(json|txt|model)")
"""Names of configurations and vocabularies."""
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_POSSIBLE = f"a network of transformers: {CONFIG}, and {WEIGHTS} or {PICKLE}"


@dataclass(frozen=True)
class Fetched:
    """A network in the cache, and what this call downloaded for it."""

    snapshot: Snapshot
    revision: str
    new: tuple[str, ...] = ()
    """Files that were downloaded by this call."""
    note: str = ""
    """What could not be checked; empty if everything was checked."""

    @property
    def origin(self) -> str:
        """Name and commit, for messages."""
        return f"{self.snapshot.name} at {self.snapshot.commit[:12]}"


def fetch(name: str, revision: str, say: Callable[[str], None] = say_line, *, update: bool = False) -> Fetched:
    """Fetch a network from the cache or, if it is not there, from the hub.

    Args:
        name: its name, such as `google-bert/bert-base-cased`.
        revision: a branch, a tag or a commit.
        say: prints lines about a download.
        update: whether to ask the hub for the current commit of a branch or tag, whatever the cache has.

    Raises:
        HubError: if there is none, or it cannot be downloaded or used.
        StorageError: if the cache cannot be written.
    """
    repository = hub_cache.find_repository(hub_connection.find_cache_folder(), name)
    if not update and (cached := _find_complete(repository, revision)):
        return cached
    foreign = repository.find_foreign(commit) if (commit := repository.commit_of(revision)) else None
    if hub_connection.is_offline():
        if update:
            raise HubError(
                "--update, and HF_HUB_OFFLINE is set, so the hub is not asked", "one of them", "unset HF_HUB_OFFLINE"
            )
        offline_error = HubError("", "files that were fetched before", "unset HF_HUB_OFFLINE", offline=True)
        return _take_unverified(repository, revision, foreign, offline_error)
    try:
        connection = hub_connection.connect(say)
        commit = hub_listing.find_commit(connection, name, revision if update else commit or revision)
        all_files = hub_listing.list_files(connection, name, commit, nested=True)
        listed = [file for file in all_files if "/" not in file.name or file.name == families.POOLING_FILE]
        with repository.locked(say):
            if cached := _find_complete(repository, commit):
                repository.record(cached.snapshot, revision)
                return replace(cached, revision=revision)
            return _download_missing(connection, repository, revision, commit, listed)
    except HubError as error:
        if update:
            raise
        return _take_unverified(repository, revision, foreign, error)


def _find_complete(repository: Repository, revision: str) -> Fetched | None:
    snapshot = repository.find_complete(repository.commit_of(revision))
    return Fetched(snapshot, revision) if snapshot else None


def _take_unverified(repository: Repository, revision: str, foreign: Snapshot | None, error: HubError) -> Fetched:
    """Take the files that another program has put into the cache, if the hub gives none.

    Raises:
        HubError: if there are none, or not all of them.
    """
    names = {file.name for file in foreign.files} if foreign else set()
    if foreign and not (_find_missing_shard(foreign) or names.isdisjoint((WEIGHTS, INDEX))):
        with contextlib.suppress(StorageError):  # the cache may be read-only
            repository.record(foreign, revision)
        lacks_hashes = any(not hub_cache.HASH.fullmatch(file.hash) for file in foreign.files)
        note = "its files have no hashes that they could be compared with" if lacks_hashes else ""
        return Fetched(foreign, revision, note=note)
    if not error.offline:
        raise error
    missing_shard = _find_missing_shard(foreign) if foreign else ""
    state = (
        f"incomplete in the cache: it lacks {missing_shard or WEIGHTS}"
        if foreign
        else f"not in the cache {repository.root.parent}"
    )
    reason = f", and {error.given}" if error.given else ", and HF_HUB_OFFLINE is set, so the hub is not asked"
    raise HubError(f"at revision {revision} is {state}{reason}", error.possible, error.action, offline=True)


def _find_missing_shard(snapshot: Snapshot) -> str:
    """The first shard that is missing; empty if there is none."""
    names = {file.name for file in snapshot.files}
    if WEIGHTS in names or INDEX not in names:
        return ""
    index = read_json(snapshot.folder / INDEX)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    expected = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else [WEIGHTS]
    return next((shard for shard in expected if shard not in names), "")


def choose_files(files: list[HubFile]) -> list[HubFile]:
    """Choose the files that are needed: configuration, vocabulary, and the weights in one format.

    Raises:
        HubError: if these are not the files of a network that can be used.
    """
    names = {file.name for file in files}
    if CONFIG not in names:
        raise HubError(f"has no {CONFIG}", _POSSIBLE, "use another network")
    configuration = [
        file for file in files if _CONFIGURATION.fullmatch(file.name) or file.name == families.POOLING_FILE
    ]
    if WEIGHTS in names:
        weights = [file for file in files if file.name == WEIGHTS]
        configuration = [file for file in configuration if file.name != INDEX]
    elif INDEX in names:
        weights = [file for file in files if _SHARD.fullmatch(file.name)]
    elif PICKLE in names:
        weights = [file for file in files if file.name == PICKLE]
    else:
        other_weights = sorted(
            name for name in names if name.endswith((".safetensors", ".bin", ".h5", ".msgpack", ".gguf"))
        )
        raise HubError(
            f"has no weights that can be used; it has {', '.join(other_weights[:4]) or 'none'}",
            _POSSIBLE,
            "use another network",
        )
    return [*configuration, *weights]


def _download_missing(
    connection: Connection, repository: Repository, revision: str, commit: str, listed: list[HubFile]
) -> Fetched:
    """Download the missing files of a commit; the caller holds the lock."""
    files = choose_files(listed)
    missing = [file for file in files if not file.is_in(repository.blobs / file.hash)]
    pickle = next((file for file in files if file.name == PICKLE), None)
    total = sum(file.size for file in missing)
    connection.say(
        f"hub: fetching {repository.name} at {commit[:12]} from {connection.endpoint}: {len(missing)} files, {total / 1e6:,.1f} MB"
    )
    progress = Progress(total, connection.say)
    for file in missing:
        url = f"{connection.endpoint}/{quote(repository.name)}/resolve/{commit}/{quote(file.name)}"
        download(connection, url, file, repository.blobs / file.hash, progress)
    with repository.staged(commit, {file.name: file.hash for file in files}) as folder:
        if pickle:
            files = [*(file for file in files if file != pickle), _convert(connection, repository, folder, pickle)]
    if pickle in missing:
        (repository.blobs / pickle.hash).unlink()
    snapshot = Snapshot(repository.name, commit, repository.folder(commit), tuple(files), PICKLE if pickle else "")
    repository.record(snapshot, revision)
    if removed_bytes := repository.remove_abandoned():
        connection.say(f"hub: removed {removed_bytes / 1e6:,.1f} MB of downloads that nobody resumed")
    return Fetched(snapshot, revision, tuple(file.name for file in missing))


def _convert(connection: Connection, repository: Repository, folder: Path, pickle: HubFile) -> HubFile:
    """Convert the pickle of a staged folder, and remove it from the folder."""
    connection.say(f"hub: {repository.name} has only a pickle ({pickle.name}); converting it in an isolated process")
    try:
        converted = converting.convert(folder / pickle.name)
    except DataError as error:
        raise HubError(
            f"has only a pickle, which cannot be converted: {error.given}", error.possible, "use another network"
        ) from None
    (folder / pickle.name).unlink()
    return replace(pickle, name=WEIGHTS, size=converted.size, hash=hash_file(converted.path))
