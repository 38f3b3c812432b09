"""Fetches files of a dataset on the Hugging Face hub, once: later runs find them in the cache and ask for nothing.

The cache, the hashes and the download are those of networks. Which files a commit has is recorded, so that another file
of a commit is found without a request for the list. Code in a repository is neither fetched nor run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from drivetrain.pretrained import hub_cache, hub_connection, hub_listing
from drivetrain.pretrained.hub_cache import Repository, Snapshot
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_dataset_files import README
from drivetrain.pretrained.hub_download import HubFile, Progress, download
from drivetrain.pretrained.hub_error import DATASET, HubError
from drivetrain.system.console import say as say_line

Choose = Callable[[Sequence[str], str], Sequence[str]]
"""The files that are needed, of all paths of the repository and its README.md; raises HubError if there are none."""


@dataclass(frozen=True)
class HubData:
    """Files of a dataset in the cache, and what this call did for them."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    """Those that are needed, with README.md."""
    paths: tuple[str, ...]
    """Of all files of the repository."""
    readme: str = ""
    new: tuple[str, ...] = ()
    """Files that were downloaded by this call."""
    note: str = ""
    """What could not be checked; empty if everything was."""

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self.files)


def find_cached(name: str, revision: str, choose: Choose) -> HubData | None:
    """The files of a dataset in the cache; None if one of them is not there. Nothing is asked of the network.

    Raises:
        HubError: from `choose`.
    """
    repository = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    commit = repository.commit_of(revision)
    listed = repository.listing(commit) if commit else None
    if listed is None:
        return None
    verified = {file.name: file for file in _list_verified(repository, commit)}
    if any(file.name == README for file in listed) and README not in verified:
        return None
    readme = _text(repository.folder(commit) / README) if README in verified else ""
    chosen_files = _choose_files(listed, choose, readme)
    if any(verified.get(file.name) != file for file in chosen_files):
        return None
    return HubData(
        name, commit, repository.folder(commit), tuple(chosen_files), tuple(file.name for file in listed), readme
    )


def fetch(
    name: str, revision: str, choose: Choose, say: Callable[[str], None] = say_line, *, update: bool = False
) -> HubData:
    """The files of a dataset, from the cache or else from the hub.

    Args:
        name: such as `stanfordnlp/imdb`.
        revision: a branch, a tag or a commit.
        choose: says which files are needed.
        say: takes lines about a download.
        update: ask the hub which commit a branch or tag is now, whatever the cache has.

    Raises:
        HubError: if there is none, or it cannot be downloaded, or from `choose`.
        StorageError: if the cache cannot be written.
    """
    if not update and (cached_data := find_cached(name, revision, choose)):
        return cached_data
    repository = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    known_commit = repository.commit_of(revision)
    if hub_connection.is_offline():
        closed = "HF_HUB_OFFLINE is set, so the hub is not asked"
        return _adopt(repository, revision, choose, HubError(closed, "", "unset HF_HUB_OFFLINE", offline=True))
    try:
        connection = hub_connection.connect(say, kind=DATASET)
        commit = hub_listing.commit(connection, name, revision) if update or not known_commit else known_commit
        with repository.locked(say):
            if cached_data := find_cached(name, commit, choose):
                repository.keep(_snapshot(repository, commit), revision)
                return cached_data
            return _fetch(connection, repository, revision, commit, choose)
    except HubError as error:
        if update or not error.offline:
            raise
        return _adopt(repository, revision, choose, error)


def _fetch(connection: Connection, repository: Repository, revision: str, commit: str, choose: Choose) -> HubData:
    """Download what is missing of a commit; the caller holds the lock."""
    listed = repository.listing(commit)
    if listed is None:
        listed = hub_listing.files(connection, repository.name, commit, nested=True)
        repository.keep_listing(commit, listed)
    about = next((file for file in listed if file.name == README), None)
    if about and not about.is_in(repository.blobs / about.hash):
        _download(connection, repository, commit, [about], Progress(about.size, lambda line: None))
    readme = _text(repository.blobs / about.hash) if about else ""
    chosen_files = _choose_files(listed, choose, readme)
    missing = [file for file in chosen_files if not file.is_in(repository.blobs / file.hash)]
    total = sum(file.size for file in missing)
    connection.say(
        f"hub: fetching {repository.name} at {commit[:12]} from {connection.endpoint}: {len(missing)} "
        f"file{'s' * (len(missing) != 1)}, {total / 1e6:,.1f} MB"
    )
    _download(connection, repository, commit, missing, Progress(total, connection.say))
    files = {file.name: file for file in (*_list_verified(repository, commit), *chosen_files)}
    with repository.staged(commit, {file.name: file.hash for file in files.values()}):
        pass
    repository.keep(Snapshot(repository.name, commit, repository.folder(commit), tuple(files.values())), revision)
    if removed_bytes := repository.remove_abandoned():
        connection.say(f"hub: removed {removed_bytes / 1e6:,.1f} MB of downloads that nobody resumed")
    new, paths = tuple(file.name for file in missing), tuple(file.name for file in listed)
    return HubData(repository.name, commit, repository.folder(commit), tuple(chosen_files), paths, readme, new)


def _download(
    connection: Connection, repository: Repository, commit: str, files: Sequence[HubFile], progress: Progress
) -> None:
    for file in files:
        if not file.is_in(repository.blobs / file.hash):  # two files can have one content
            url = file_url(connection, repository.name, commit, file)
            download(connection, url, file, repository.blobs / file.hash, progress)


def file_url(connection: Connection, name: str, commit: str, file: HubFile) -> str:
    """Where a file of a dataset is."""
    return f"{connection.endpoint}/{DATASET.address}{quote(name)}/resolve/{commit}/{quote(file.name)}"


def list_files(name: str, commit: str) -> list[HubFile]:
    """All files of a commit that was fetched, or a part of it; none if it was not."""
    return hub_cache.repository(hub_connection.cache_folder(), name, DATASET).listing(commit) or []


def readme(name: str, commit: str) -> str:
    """The README.md of a commit that was fetched; empty if it has none."""
    repository = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    return _text(repository.folder(commit) / README)


def _choose_files(listed: Sequence[HubFile], choose: Choose, readme: str) -> list[HubFile]:
    names = {README, *choose([file.name for file in listed], readme)}
    return [file for file in listed if file.name in names]


def _list_verified(repository: Repository, commit: str) -> tuple[HubFile, ...]:
    """Files of a commit that were compared with their hashes, and that are there."""
    snapshot = repository.complete(commit)
    return snapshot.files if snapshot else ()


def _snapshot(repository: Repository, commit: str) -> Snapshot:
    return Snapshot(repository.name, commit, repository.folder(commit), _list_verified(repository, commit))


def _adopt(repository: Repository, revision: str, choose: Choose, error: HubError) -> HubData:
    """What another program has put into the cache, where the hub cannot be reached.

    Raises:
        HubError: if there is nothing, or not all that is needed.
    """
    commit = repository.commit_of(revision)
    foreign = repository.foreign(commit, nested=True) if commit else None
    if foreign and foreign.files:
        readme = _text(foreign.folder / README)
        paths = tuple(file.name for file in foreign.files)
        chosen_files = _choose_files(foreign.files, choose, readme)
        plain = any(not hub_cache.HASH.fullmatch(file.hash) for file in foreign.files)
        note = "its files have no hashes that they could be compared with" if plain else ""
        return HubData(repository.name, commit, foreign.folder, tuple(chosen_files), paths, readme, note=note)
    raise HubError(
        f"at revision {revision} is not in the cache {repository.root.parent}, and {error.given}",
        error.possible or "files that were fetched before",
        error.action,
        offline=True,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
