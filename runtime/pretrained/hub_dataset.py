"""Fetches files of a dataset on the Hugging Face hub, once: later runs find them in the cache and ask for nothing.

The cache, the hashes and the download are those of networks. Which files a commit has is recorded, so that another file
of a commit is found without a request for the list. Code in a repository is neither fetched nor run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from runtime.pretrained import hub_cache, hub_connection, hub_listing
from runtime.pretrained.hub_cache import Repository, Snapshot
from runtime.pretrained.hub_connection import Connection
from runtime.pretrained.hub_dataset_files import README
from runtime.pretrained.hub_download import HubFile, Progress, download
from runtime.pretrained.hub_error import DATASET, HubError
from runtime.system.console import say as say_line

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


def cached(name: str, revision: str, choose: Choose) -> HubData | None:
    """The files of a dataset in the cache; None if one of them is not there. Nothing is asked of the network.

    Raises:
        HubError: from `choose`.
    """
    place = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    commit = place.commit_of(revision)
    listed = place.listing(commit) if commit else None
    if listed is None:
        return None
    there = {file.name: file for file in _verified(place, commit)}
    if any(file.name == README for file in listed) and README not in there:
        return None
    readme = _text(place.folder(commit) / README) if README in there else ""
    wanted = _wanted(listed, choose, readme)
    if any(there.get(file.name) != file for file in wanted):
        return None
    return HubData(name, commit, place.folder(commit), tuple(wanted), tuple(file.name for file in listed), readme)


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
    if not update and (there := cached(name, revision, choose)):
        return there
    place = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    known = place.commit_of(revision)
    if hub_connection.is_offline():
        closed = "HF_HUB_OFFLINE is set, so the hub is not asked"
        return _adopted(place, revision, choose, HubError(closed, "", "unset HF_HUB_OFFLINE", offline=True))
    try:
        connection = hub_connection.connect(say, kind=DATASET)
        commit = hub_listing.commit(connection, name, revision) if update or not known else known
        with place.locked(say):
            if there := cached(name, commit, choose):
                place.keep(_snapshot(place, commit), revision)
                return there
            return _fetched(connection, place, revision, commit, choose)
    except HubError as error:
        if update or not error.offline:
            raise
        return _adopted(place, revision, choose, error)


def _fetched(connection: Connection, place: Repository, revision: str, commit: str, choose: Choose) -> HubData:
    """Download what is missing of a commit; the caller holds the lock."""
    listed = place.listing(commit)
    if listed is None:
        listed = hub_listing.files(connection, place.name, commit, nested=True)
        place.keep_listing(commit, listed)
    about = next((file for file in listed if file.name == README), None)
    if about and not about.is_in(place.blobs / about.hash):
        _download(connection, place, commit, [about], Progress(about.size, lambda line: None))
    readme = _text(place.blobs / about.hash) if about else ""
    wanted = _wanted(listed, choose, readme)
    missing = [file for file in wanted if not file.is_in(place.blobs / file.hash)]
    total = sum(file.size for file in missing)
    connection.say(
        f"hub: fetching {place.name} at {commit[:12]} from {connection.endpoint}: {len(missing)} "
        f"file{'s' * (len(missing) != 1)}, {total / 1e6:,.1f} MB"
    )
    _download(connection, place, commit, missing, Progress(total, connection.say))
    files = {file.name: file for file in (*_verified(place, commit), *wanted)}
    with place.staged(commit, {file.name: file.hash for file in files.values()}):
        pass
    place.keep(Snapshot(place.name, commit, place.folder(commit), tuple(files.values())), revision)
    if left := place.remove_abandoned():
        connection.say(f"hub: removed {left / 1e6:,.1f} MB of downloads that nobody resumed")
    new, paths = tuple(file.name for file in missing), tuple(file.name for file in listed)
    return HubData(place.name, commit, place.folder(commit), tuple(wanted), paths, readme, new)


def _download(
    connection: Connection, place: Repository, commit: str, files: Sequence[HubFile], progress: Progress
) -> None:
    for file in files:
        if not file.is_in(place.blobs / file.hash):  # two files can have one content
            url = file_url(connection, place.name, commit, file)
            download(connection, url, file, place.blobs / file.hash, progress)


def file_url(connection: Connection, name: str, commit: str, file: HubFile) -> str:
    """Where a file of a dataset is."""
    return f"{connection.endpoint}/{DATASET.address}{quote(name)}/resolve/{commit}/{quote(file.name)}"


def listed(name: str, commit: str) -> list[HubFile]:
    """All files of a commit that was fetched, or a part of it; none if it was not."""
    return hub_cache.repository(hub_connection.cache_folder(), name, DATASET).listing(commit) or []


def readme(name: str, commit: str) -> str:
    """The README.md of a commit that was fetched; empty if it has none."""
    place = hub_cache.repository(hub_connection.cache_folder(), name, DATASET)
    return _text(place.folder(commit) / README)


def _wanted(listed: Sequence[HubFile], choose: Choose, readme: str) -> list[HubFile]:
    names = {README, *choose([file.name for file in listed], readme)}
    return [file for file in listed if file.name in names]


def _verified(place: Repository, commit: str) -> tuple[HubFile, ...]:
    """Files of a commit that were compared with their hashes, and that are there."""
    snapshot = place.complete(commit)
    return snapshot.files if snapshot else ()


def _snapshot(place: Repository, commit: str) -> Snapshot:
    return Snapshot(place.name, commit, place.folder(commit), _verified(place, commit))


def _adopted(place: Repository, revision: str, choose: Choose, error: HubError) -> HubData:
    """What another program has put into the cache, where the hub cannot be reached.

    Raises:
        HubError: if there is nothing, or not all that is needed.
    """
    commit = place.commit_of(revision)
    found = place.foreign(commit, nested=True) if commit else None
    if found and found.files:
        readme = _text(found.folder / README)
        paths = tuple(file.name for file in found.files)
        wanted = _wanted(found.files, choose, readme)
        plain = any(not hub_cache.HASH.fullmatch(file.hash) for file in found.files)
        note = "its files have no hashes that they could be compared with" if plain else ""
        return HubData(place.name, commit, found.folder, tuple(wanted), paths, readme, note=note)
    raise HubError(
        f"at revision {revision} is not in the cache {place.root.parent}, and {error.given}",
        error.possible or "files that were fetched before",
        error.action,
        offline=True,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
