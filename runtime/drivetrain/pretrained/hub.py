"""Fetches chosen files of a repository on the Hugging Face hub once; later runs use the cache and need no network.

A revision is resolved to a commit once, and the list of a commit's files is recorded. Every file is compared with its hash
before it gets its final name. A pickle is converted in an isolated process. Code in a repository is neither fetched nor run.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from drivetrain.errors import DataError, StorageError
from drivetrain.pretrained import convert as converting
from drivetrain.pretrained import families, hub_connection
from drivetrain.pretrained.hub_cache import COMMIT, HASH, HubFile, Repository, Snapshot, find_repository
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_download import Progress, download
from drivetrain.pretrained.hub_error import NETWORK, HubError
from drivetrain.system.console import say as say_line
from drivetrain.system.files import hash_file, sync_file
from drivetrain.system.secrets import mask_secrets

PICKLE = "pytorch_model.bin"
MAIN = "main"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_CONFIGURATION = re.compile(r"[\w+-][\w.+-]*\.(json|txt|model)")
"""Names of configurations and vocabularies."""
_SHARD = re.compile(r"model-\d+-of-(?P<count>\d{5})\.safetensors")
_POSSIBLE = f"a network of transformers: {CONFIG}, and {WEIGHTS} or {PICKLE}"
Choose = Callable[[Sequence[str], str], Iterable[str]]
"""Chooses the needed files, given all paths of the repository and its README.md; raises HubError if there are none."""


@dataclass(frozen=True)
class Fetched:
    """Files in the cache, and what this call downloaded for them."""

    snapshot: Snapshot
    """The needed files, with the README.md of a dataset."""
    revision: str
    paths: tuple[str, ...]
    """Paths of all files of the repository."""
    readme: str = ""
    """The content of a dataset's README.md."""
    new: tuple[str, ...] = ()
    """Files that were downloaded by this call."""
    note: str = ""
    """What could not be checked; empty if everything was checked."""

    @property
    def origin(self) -> str:
        """Name and commit, for messages."""
        return f"{self.snapshot.name} at {self.snapshot.commit[:12]}"


def find_cached(repository: Repository, revision: str, choose: Choose) -> Fetched | None:
    """Find the chosen files in the cache, without a request; None if one of them is not there.

    Raises:
        HubError: from `choose`.
    """
    commit = repository.commit_of(revision)
    snapshot = repository.find_complete(commit)
    if snapshot is None:
        return None
    # Earlier versions recorded no list of the files of a network.
    paths = tuple(file.name for file in repository.read_listing(commit) or snapshot.files)
    files = {file.name: file for file in snapshot.files}
    if repository.kind.readme in paths and repository.kind.readme not in files:
        return None
    readme = repository.read_readme(commit)
    needed = [
        converting.WEIGHTS_NAME if name == snapshot.converted else name
        for name in _choose_names(repository, paths, choose, readme)
    ]
    if any(name not in files for name in needed):
        return None
    return Fetched(replace(snapshot, files=tuple(files[name] for name in needed)), revision, paths, readme)


def fetch(
    repository: Repository,
    revision: str,
    choose: Choose,
    say: Callable[[str], None] = say_line,
    *,
    update: bool = False,
) -> Fetched:
    """Fetch the chosen files from the cache or, if they are not there, from the hub.

    Args:
        repository: name and kind, and its part of the cache.
        revision: a branch, a tag or a commit.
        update: whether to ask the hub for the current commit of a branch or tag, whatever the cache has.

    Raises:
        HubError: if there is no such repository, or it cannot be downloaded, or from `choose`.
        StorageError: if the cache cannot be written.
    """
    if not update and (cached := find_cached(repository, revision, choose)):
        return cached
    try:
        if hub_connection.is_offline():
            closed = "HF_HUB_OFFLINE is set, so the hub is not asked"
            if update:
                raise HubError(f"--update, and {closed}", "one of them", "unset HF_HUB_OFFLINE")
            raise HubError(closed, "", "unset HF_HUB_OFFLINE", offline=True)
        connection = hub_connection.connect(repository.name, repository.kind, say)
        commit = repository.commit_of(revision)
        if update or not COMMIT.fullmatch(commit):
            commit = hub_connection.find_commit(connection, revision)
        with repository.locked(say):
            if cached := find_cached(repository, commit, choose):
                repository.record_revision(revision, commit)
                return replace(cached, revision=revision)
            return _download_missing(connection, repository, revision, commit, choose)
    except HubError as error:
        if update or not (error.offline or repository.kind is NETWORK):
            raise
        return _take_unverified(repository, revision, choose, error)


def _take_unverified(repository: Repository, revision: str, choose: Choose, error: HubError) -> Fetched:
    """Take the files that another program has put into the cache, if the hub gives none.

    Raises:
        HubError: if there are none, or not all needed files.
    """
    commit = repository.commit_of(revision)
    in_cache = repository.list_foreign(commit) if commit else []
    paths = [file.name for file in repository.read_listing(commit) or ()] or in_cache
    readme = repository.read_readme(commit)
    snapshot, lack = _verify_foreign(repository, commit, in_cache, paths, choose, readme) if in_cache else (None, "")
    if snapshot is None and not error.offline:
        raise error
    if snapshot is None:
        state = f"incomplete in the cache: it {lack}" if lack else f"not in the cache {repository.root.parent}"
        raise HubError(
            f"at revision {revision} is {state}, and {error.given}",
            error.possible or "files that were fetched before",
            error.action,
            offline=True,
        )
    if repository.kind is NETWORK:  # of data, another program may have only a part
        with contextlib.suppress(StorageError):  # the cache may be read-only
            repository.record(snapshot, revision)
    lacks_hashes = any(not HASH.fullmatch(file.hash) for file in snapshot.files)
    note = "its files have no hashes that they could be compared with" if lacks_hashes else ""
    return Fetched(snapshot, revision, tuple(paths), readme, note=note)


def _verify_foreign(
    repository: Repository, commit: str, in_cache: Sequence[str], paths: Sequence[str], choose: Choose, readme: str
) -> tuple[Snapshot | None, str]:
    """The snapshot of the needed files; without it, what the cache lacks, empty if a file has not the hash of its name."""
    try:
        names = _choose_names(repository, paths, choose, readme)
    except HubError as error:
        if repository.kind is not NETWORK:  # the data is there, and the job has to say which
            raise
        return None, error.given
    if missing := sorted({*names}.difference(in_cache)):
        return None, f"lacks {missing[0]}"
    return repository.verify_foreign(commit, names), ""


def _choose_names(repository: Repository, paths: Sequence[str], choose: Choose, readme: str) -> list[str]:
    names = {repository.kind.readme, *choose(paths, readme)}
    return [path for path in paths if path in names]


def _download_missing(
    connection: Connection, repository: Repository, revision: str, commit: str, choose: Choose
) -> Fetched:
    """Download the missing files of a commit; the caller holds the lock."""
    listed = repository.read_listing(commit)
    if listed is None:
        listed = hub_connection.list_files(connection, commit)
        repository.write_listing(commit, listed)
    by_name = {file.name: file for file in listed}
    if described := by_name.get(repository.kind.readme):
        _download(connection, repository, commit, [described], Progress())
    readme = repository.blob(described).read_text(encoding="utf-8", errors="replace") if described else ""
    files = [by_name[name] for name in _choose_names(repository, list(by_name), choose, readme)]
    missing = [file for file in files if not file.is_in(repository.blob(file))]
    total = sum(file.size for file in missing)
    connection.say(
        f"hub: fetching {repository.name} at {commit[:12]} from {mask_secrets(connection.endpoint)}: {len(missing)} "
        f"file{'s' * (len(missing) != 1)}, {total / 1e6:,.1f} MB"
    )
    _download(connection, repository, commit, missing, Progress(total, connection.say))
    pickle = next((file for file in files if file.name == PICKLE), None)
    if pickle:
        files[files.index(pickle)] = _convert(connection, repository, commit, pickle)
        if pickle in missing:
            repository.blob(pickle).unlink()
    snapshot = Snapshot(repository.name, commit, repository.folder(commit), tuple(files), PICKLE if pickle else "")
    earlier = repository.find_complete(commit)
    all_files = {file.name: file for file in (*(earlier.files if earlier else ()), *files)}
    repository.link(files, snapshot.folder)
    repository.record(replace(snapshot, files=tuple(all_files.values())), revision)
    if removed_bytes := repository.remove_abandoned():
        connection.say(f"hub: removed {removed_bytes / 1e6:,.1f} MB of downloads that nobody resumed")
    return Fetched(snapshot, revision, tuple(by_name), readme, tuple(file.name for file in missing))


def _download(
    connection: Connection, repository: Repository, commit: str, files: Sequence[HubFile], progress: Progress
) -> None:
    for file in files:
        if not file.is_in(repository.blob(file)):  # two files can have one content
            download(connection, commit, file, repository.blob(file), progress)


def _convert(connection: Connection, repository: Repository, commit: str, pickle: HubFile) -> HubFile:
    """Convert a pickle in the cache; the weights become a file of the cache like others."""
    connection.say(f"hub: {repository.name} has only a pickle ({pickle.name}); converting it in an isolated process")
    # `remove_abandoned` removes what a killed process leaves of it.
    folder = repository.folder(f".{commit}.converting")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        repository.link([pickle], folder)
        converted = converting.convert(folder / pickle.name)
        weights = HubFile(converting.WEIGHTS_NAME, converted.size, hash_file(converted.path))
        sync_file(converted.path)
        converted.path.replace(repository.blob(weights))
    except DataError as error:
        raise HubError(
            f"has only a pickle, which cannot be converted: {error.given}", error.possible, "use another network"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return weights


def fetch_network(name: str, revision: str, say: Callable[[str], None] = say_line, *, update: bool = False) -> Fetched:
    """Fetch a network from the cache or, if it is not there, from the hub.

    Args:
        name: its name, such as `google-bert/bert-base-cased`.
        revision: a branch, a tag or a commit.
        update: whether to ask the hub for the current commit of a branch or tag, whatever the cache has.

    Raises:
        HubError: if there is none, or it cannot be downloaded or used.
        StorageError: if the cache cannot be written.
    """
    return fetch(find_repository(name, NETWORK), revision, _choose_network_files, say, update=update)


def _choose_network_files(paths: Sequence[str], readme: str) -> list[str]:
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
        missing = [_find_missing_shard(count, set(names)) for count in sorted({shard["count"] for shard in shards})]
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


def _find_missing_shard(count: str, names: set[str]) -> str:
    """The first missing one of so many shards; empty if all are there."""
    shards = (f"model-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1))
    return next((shard for shard in shards if shard not in names), "")
