"""Fetches files of a dataset on the Hugging Face hub once; later runs use the cache and need no network.

Cache, hashes and downloads work as for networks. The list of a commit's files is recorded, so that other files of the
commit need no further request for it. Code in a repository is neither fetched nor run.
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
"""Chooses the needed files, given all paths of the repository and its README.md; raises HubError if there are none."""


@dataclass(frozen=True)
class HubData:
    """Files of a dataset in the cache, and what this call downloaded for them."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    """The needed files, with README.md."""
    paths: tuple[str, ...]
    """Paths of all files of the repository."""
    readme: str = ""
    new: tuple[str, ...] = ()
    """Files that were downloaded by this call."""
    note: str = ""
    """What could not be checked; empty if everything was checked."""

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self.files)


def find_cached(name: str, revision: str, choose: Choose) -> HubData | None:
    """Find the files of a dataset in the cache, without a request; None if one of them is not there.

    Raises:
        HubError: from `choose`.
    """
    repository = hub_cache.find_repository(hub_connection.find_cache_folder(), name, DATASET)
    commit = repository.commit_of(revision)
    listed = repository.read_listing(commit) if commit else None
    if listed is None:
        return None
    verified = {file.name: file for file in _list_verified(repository, commit)}
    if any(file.name == README for file in listed) and README not in verified:
        return None
    readme = _read_text(repository.folder(commit) / README) if README in verified else ""
    chosen_files = _choose_files(listed, choose, readme)
    if any(verified.get(file.name) != file for file in chosen_files):
        return None
    return HubData(
        name, commit, repository.folder(commit), tuple(chosen_files), tuple(file.name for file in listed), readme
    )


def fetch(
    name: str, revision: str, choose: Choose, say: Callable[[str], None] = say_line, *, update: bool = False
) -> HubData:
    """Fetch the files of a dataset from the cache or, if they are not there, from the hub.

    Args:
        name: its name, such as `stanfordnlp/imdb`.
        revision: a branch, a tag or a commit.
        choose: chooses the needed files.
        say: prints lines about a download.
        update: whether to ask the hub for the current commit of a branch or tag, whatever the cache has.

    Raises:
        HubError: if there is none, or it cannot be downloaded, or from `choose`.
        StorageError: if the cache cannot be written.
    """
    if not update and (cached_data := find_cached(name, revision, choose)):
        return cached_data
    repository = hub_cache.find_repository(hub_connection.find_cache_folder(), name, DATASET)
    known_commit = repository.commit_of(revision)
    if hub_connection.is_offline():
        closed = "HF_HUB_OFFLINE is set, so the hub is not asked"
        return _take_unverified(
            repository, revision, choose, HubError(closed, "", "unset HF_HUB_OFFLINE", offline=True)
        )
    try:
        connection = hub_connection.connect(say, kind=DATASET)
        commit = hub_listing.find_commit(connection, name, revision) if update or not known_commit else known_commit
        with repository.locked(say):
            if cached_data := find_cached(name, commit, choose):
                repository.record(_make_snapshot(repository, commit), revision)
                return cached_data
            return _download_missing(connection, repository, revision, commit, choose)
    except HubError as error:
        if update or not error.offline:
            raise
        return _take_unverified(repository, revision, choose, error)


def _download_missing(
    connection: Connection, repository: Repository, revision: str, commit: str, choose: Choose
) -> HubData:
    """Download the missing files of a commit; the caller holds the lock."""
    listed = repository.read_listing(commit)
    if listed is None:
        listed = hub_listing.list_files(connection, repository.name, commit, nested=True)
        repository.write_listing(commit, listed)
    readme_file = next((file for file in listed if file.name == README), None)
    if readme_file and not readme_file.is_in(repository.blobs / readme_file.hash):
        _download(connection, repository, commit, [readme_file], Progress(readme_file.size, lambda line: None))
    readme = _read_text(repository.blobs / readme_file.hash) if readme_file else ""
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
    repository.record(Snapshot(repository.name, commit, repository.folder(commit), tuple(files.values())), revision)
    if removed_bytes := repository.remove_abandoned():
        connection.say(f"hub: removed {removed_bytes / 1e6:,.1f} MB of downloads that nobody resumed")
    new, paths = tuple(file.name for file in missing), tuple(file.name for file in listed)
    return HubData(repository.name, commit, repository.folder(commit), tuple(chosen_files), paths, readme, new)


def _download(
    connection: Connection, repository: Repository, commit: str, files: Sequence[HubFile], progress: Progress
) -> None:
    for file in files:
        if not file.is_in(repository.blobs / file.hash):  # two files can have one content
            url = make_file_url(connection, repository.name, commit, file)
            download(connection, url, file, repository.blobs / file.hash, progress)


def make_file_url(connection: Connection, name: str, commit: str, file: HubFile) -> str:
    """The URL of a file of a dataset."""
    return f"{connection.endpoint}/{DATASET.address}{quote(name)}/resolve/{commit}/{quote(file.name)}"


def list_files(name: str, commit: str) -> list[HubFile]:
    """All files on the hub of a commit of which some were fetched; empty if none were."""
    return hub_cache.find_repository(hub_connection.find_cache_folder(), name, DATASET).read_listing(commit) or []


def read_readme(name: str, commit: str) -> str:
    """The README.md of a commit that was fetched; empty if it has none."""
    repository = hub_cache.find_repository(hub_connection.find_cache_folder(), name, DATASET)
    return _read_text(repository.folder(commit) / README)


def _choose_files(listed: Sequence[HubFile], choose: Choose, readme: str) -> list[HubFile]:
    names = {README, *choose([file.name for file in listed], readme)}
    return [file for file in listed if file.name in names]


def _list_verified(repository: Repository, commit: str) -> tuple[HubFile, ...]:
    """The files of a commit that are in the cache and were compared with their hashes."""
    snapshot = repository.find_complete(commit)
    return snapshot.files if snapshot else ()


def _make_snapshot(repository: Repository, commit: str) -> Snapshot:
    return Snapshot(repository.name, commit, repository.folder(commit), _list_verified(repository, commit))


def _take_unverified(repository: Repository, revision: str, choose: Choose, error: HubError) -> HubData:
    """Take the files that another program has put into the cache, if the hub cannot be reached.

    Raises:
        HubError: if there are none, or not all needed files.
    """
    commit = repository.commit_of(revision)
    foreign = repository.find_foreign(commit, nested=True) if commit else None
    if foreign and foreign.files:
        readme = _read_text(foreign.folder / README)
        paths = tuple(file.name for file in foreign.files)
        chosen_files = _choose_files(foreign.files, choose, readme)
        lacks_hashes = any(not hub_cache.HASH.fullmatch(file.hash) for file in foreign.files)
        note = "its files have no hashes that they could be compared with" if lacks_hashes else ""
        return HubData(repository.name, commit, foreign.folder, tuple(chosen_files), paths, readme, note=note)
    raise HubError(
        f"at revision {revision} is not in the cache {repository.root.parent}, and {error.given}",
        error.possible or "files that were fetched before",
        error.action,
        offline=True,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
