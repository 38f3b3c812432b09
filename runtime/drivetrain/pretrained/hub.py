"""Fetches chosen files of a repository on the Hugging Face hub once; later runs use the cache and need no network.

A revision is resolved to a commit once, and the list of a commit's files is recorded. Every file is compared with its hash
before it gets its final name. A pickle is converted in a limited process. Code in a repository is neither fetched nor run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from drivetrain.errors import DataError
from drivetrain.pretrained import convert as converting
from drivetrain.pretrained import families, hub_client
from drivetrain.pretrained.hub_cache import COMMIT, PART, CommitRecord, HubFile, Repository, find_repository
from drivetrain.pretrained.hub_client import HubClient
from drivetrain.pretrained.hub_error import NETWORK, HubError
from drivetrain.system.console import say as say_line
from drivetrain.system.download_progress import DownloadProgress
from drivetrain.system.files import hash_file, sync_file
from drivetrain.system.secrets import mask_secrets

PICKLE = "pytorch_model.bin"
MAIN = "main"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_CONFIGURATION = re.compile(r"[\w+-][\w.+-]*\.(json|txt|model)")
"""Names of configurations and vocabularies."""
_SHARD = re.compile(r"model-\d+-of-(?P<count>\d{5})\.safetensors")
_POSSIBLE = f"a network of transformers: {CONFIG}, and {WEIGHTS} or {PICKLE}"
UNCHECKED = "its files have no hashes that they could be compared with"
Choose = Callable[[Sequence[str], str], Iterable[str]]
"""Chooses the needed files, given all paths of the repository and its README.md; raises HubError if there are none."""


@dataclass(frozen=True)
class Fetched:
    """Files of a commit in the cache, and what this call downloaded for them."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    """The needed files, with the README.md of a dataset."""
    revision: str
    paths: tuple[str, ...]
    """Paths of all files of the repository."""
    readme: str = ""
    """The content of a dataset's README.md."""
    downloaded: tuple[str, ...] = ()
    """Names of the files that this call downloaded."""
    note: str = ""
    """What could not be checked; empty if everything was checked."""

    @property
    def origin(self) -> str:
        """Name and commit, for messages."""
        return f"{self.name} at {self.commit[:12]}"

    @property
    def converted_from(self) -> str:
        """The pickle from which model.safetensors was converted; empty if the hub has model.safetensors."""
        is_own = any(file.name == WEIGHTS for file in self.files) and WEIGHTS not in self.paths
        return PICKLE if is_own and PICKLE in self.paths else ""


def find_cached(repository: Repository, revision: str, choose: Choose) -> Fetched | None:
    """Find the chosen files in the cache, without a request; None if one of them is not there.

    Raises:
        HubError: from `choose`.
    """
    commit = repository.commit_of(revision)
    record = repository.read_record(commit) if commit else None
    if record is None or (repository.kind.readme in record.listed and repository.kind.readme not in record.checked):
        return None

    def find_checked(name: str) -> HubFile | None:
        file = record.checked.get(WEIGHTS if name == PICKLE else name)
        path = repository.folder(commit) / file.name if file else None
        return file if file and path and path.is_file() and path.stat().st_size == file.size else None

    return _select(repository, revision, tuple(record.listed), find_checked, choose)


def _select(
    repository: Repository,
    revision: str,
    paths: tuple[str, ...],
    find_file: Callable[[str], HubFile | None],
    choose: Choose,
) -> Fetched | None:
    """Select the needed files; None if one of them is not in the cache."""
    commit = repository.commit_of(revision)
    readme = repository.read_readme(commit)
    needed = _choose_names(repository, paths, choose, readme)
    files = tuple(file for file in map(find_file, needed) if file)
    if len(files) < len(needed):
        return None
    return Fetched(repository.name, commit, repository.folder(commit), files, revision, paths, readme)


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
    cached = None if update else find_cached(repository, revision, choose)
    if cached:
        return cached
    try:
        client = hub_client.connect(repository.name, repository.kind, say)
        with client.http, repository.locked(say):
            commit = repository.commit_of(revision)
            if update or not COMMIT.fullmatch(commit):
                commit = client.find_commit(revision)
            fetched = find_cached(repository, commit, choose) or _download_missing(client, repository, commit, choose)
            repository.record_revision(revision, commit)
            return replace(fetched, revision=revision)
    except HubError as error:
        if update:
            raise
        return _use_foreign_files(repository, revision, choose, error)


def _use_foreign_files(repository: Repository, revision: str, choose: Choose, error: HubError) -> Fetched:
    """Use the files that another program has put into the cache, if the hub gives none.

    Raises:
        HubError: if there are none, or not all needed files.
    """
    commit = repository.commit_of(revision)
    in_cache = repository.list_cached(commit) if commit else []
    record = repository.read_record(commit)
    try:
        paths = tuple(record.listed if record else in_cache)
        fetched = None
        if in_cache:
            fetched = _select(repository, revision, paths, partial(repository.read_file, commit), choose)
    except HubError:
        if repository.kind is not NETWORK:  # the data is there, and the job has to say which
            raise
        fetched = None
    if fetched:
        lacks_hashes = not all(file.hash for file in fetched.files)
        return replace(fetched, note=UNCHECKED if lacks_hashes else "")
    if not error.offline:
        raise error
    description = f"at revision {revision} is not complete in the cache {repository.root.parent}, and {error.given}"
    raise HubError(description, error.possible, error.action, offline=True)


def _choose_names(repository: Repository, paths: Sequence[str], choose: Choose, readme: str) -> list[str]:
    names = {repository.kind.readme, *choose(paths, readme)}
    return [path for path in paths if path in names]


def _download_missing(client: HubClient, repository: Repository, commit: str, choose: Choose) -> Fetched:
    """Download the missing files of a commit; the caller holds the lock."""
    record = repository.read_record(commit)
    if record is None:
        record = CommitRecord({file.name: file for file in client.list_files(commit)}, {})
        # Without this list, files that got their names before a kill would be taken for the whole repository.
        repository.write_record(commit, record)
    listed, readme = record.listed, ""
    described = listed.get(repository.kind.readme)
    if described:
        _download(client, repository, commit, [described], DownloadProgress("hub", described.size, client.say))
        readme = repository.blob(described).read_text(encoding="utf-8", errors="replace")
    files = [listed[name] for name in _choose_names(repository, tuple(listed), choose, readme)]
    missing = [file for file in files if not file.is_in(repository.blob(file))]
    total = sum(file.size for file in missing)
    client.say(
        f"hub: fetching {repository.name} at {commit[:12]} from {mask_secrets(client.endpoint)}: {len(missing)} "
        f"file{'s' * (len(missing) != 1)}, {total / 1e6:,.1f} MB"
    )
    _download(client, repository, commit, missing, DownloadProgress("hub", total, client.say))
    pickle = next((file for file in files if file.name == PICKLE), None)
    if pickle:
        files[files.index(pickle)] = _convert(client, repository, pickle)
        if pickle in missing:
            repository.blob(pickle).unlink()
    folder = repository.folder(commit)
    repository.link(files, folder)
    checked = record.checked | {file.name: file for file in files}
    repository.write_record(commit, CommitRecord(listed, checked))
    downloaded = tuple(file.name for file in missing)
    return Fetched(repository.name, commit, folder, tuple(files), commit, tuple(listed), readme, downloaded)


def _download(
    client: HubClient, repository: Repository, commit: str, files: Sequence[HubFile], progress: DownloadProgress
) -> None:
    for file in files:
        if not file.is_in(repository.blob(file)):  # two files can have one content
            client.download(commit, file, repository.blob(file), progress)


def _convert(client: HubClient, repository: Repository, pickle: HubFile) -> HubFile:
    """Convert a pickle in the cache; the weights become a file of the cache like others."""
    client.say(f"hub: {repository.name} has only a pickle ({pickle.name}); converting it in a limited process")
    path = repository.blob(pickle).with_name(f"{pickle.hash}.safetensors{PART}")
    path.unlink(missing_ok=True)  # of a killed process, in a cache without locks
    try:
        converting.convert(repository.blob(pickle), path)
    except DataError as error:
        description = f"has only a pickle, which cannot be converted: {error.given}"
        raise HubError(description, error.possible, "use another network") from None
    weights = HubFile(WEIGHTS, path.stat().st_size, hash_file(path))
    sync_file(path)
    path.replace(repository.blob(weights))
    return weights


def fetch_network(name: str, revision: str, say: Callable[[str], None] = say_line, *, update: bool = False) -> Fetched:
    """Fetch a network by its name, such as `google-bert/bert-base-cased`; see `fetch`."""
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
    shards = [shard for shard in map(_SHARD.fullmatch, names) if shard]
    if INDEX in names and shards:
        counts = Counter(int(shard["count"]) for shard in shards)
        if all(present < count for count, present in counts.items()):
            raise HubError("lacks a part of its weights", _POSSIBLE, "use another network")
        return [*configuration, *(shard[0] for shard in shards)]
    if PICKLE in names:
        return [*configuration, PICKLE]
    suffixes = (".safetensors", ".bin", ".h5", ".msgpack", ".gguf")
    other_weights = ", ".join(sorted(name for name in names if name.endswith(suffixes))[:4])
    raise HubError(
        f"has no weights that can be used; it has {other_weights or 'none'}", _POSSIBLE, "use another network"
    )
