"""Which commit a revision of the hub is, and which files a commit has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import quote

from drivetrain.pretrained import hub_cache
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_download import HubFile
from drivetrain.pretrained.hub_error import HubError

_MAX_PAGES = 200
"""Largest number of pages of a list."""


def commit(connection: Connection, name: str, revision: str) -> str:
    """The commit of a branch or tag.

    Raises:
        HubError: if the hub does not say it.
    """
    about, _ = connection.json(f"{_repository(connection, name)}/revision/{quote(revision, safe='')}")
    commit_hash = about.get("sha") if isinstance(about, dict) else None
    if not isinstance(commit_hash, str) or not hub_cache.COMMIT.fullmatch(commit_hash):
        raise _strange(connection, "no commit")
    return commit_hash


def files(connection: Connection, name: str, commit: str, *, nested: bool = False) -> list[HubFile]:
    """The files of a commit: those at its top, or all of them.

    Raises:
        HubError: if the hub does not list them.
    """
    listed: list[HubFile] = []
    path = f"{_repository(connection, name)}/tree/{commit}{'?recursive=true' if nested else ''}"
    for _ in range(_MAX_PAGES):
        rows, path = connection.json(path)
        if not isinstance(rows, list):
            raise _strange(connection, "no list of files")
        listed += (file for row in rows if isinstance(row, dict) for file in read_listed_file(row, nested=nested))
        if not path:
            break
    return listed


def _repository(connection: Connection, name: str) -> str:
    return f"/api/{connection.kind.folder}/{quote(name)}"


def read_listed_file(row: dict[str, object], *, nested: bool = False) -> Iterator[HubFile]:
    """A file of the list, if its values are sound: they become names in the cache."""
    large = row.get("lfs")
    name, size = row.get("path"), row.get("size")
    digest = large.get("oid") if isinstance(large, dict) else row.get("oid")
    sound = isinstance(name, str) and isinstance(size, int) and isinstance(digest, str) and _is_safe(name, nested)
    if row.get("type") == "file" and sound and hub_cache.HASH.fullmatch(str(digest)):
        yield HubFile(str(name), int(str(size)), str(digest))


def _is_safe(name: str, nested: bool) -> bool:
    """Whether a name stays below the folder that it is written to."""
    parts = PurePosixPath(name).parts
    plain = bool(name) and name == "/".join(parts) and "\\" not in name and "\0" not in name
    return plain and ".." not in parts and not name.startswith("/") and (nested or len(parts) == 1)


def _strange(connection: Connection, description: str) -> HubError:
    return HubError(
        f"{connection.endpoint} answers with {description}",
        "a hub, or a mirror of it",
        "check HF_ENDPOINT and the proxy",
    )
