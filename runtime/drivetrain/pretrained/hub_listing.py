"""Asks the hub which commit a revision is, and which files a commit has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import quote

from drivetrain.pretrained import hub_cache
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_download import HubFile
from drivetrain.pretrained.hub_error import HubError

_MAX_PAGES = 200
"""Pages at most that are read of a list."""


def find_commit(connection: Connection, name: str, revision: str) -> str:
    """The commit of a branch or tag.

    Raises:
        HubError: if the hub does not tell it.
    """
    answer, _ = connection.read_json_page(f"{_make_path(connection, name)}/revision/{quote(revision, safe='')}")
    commit_hash = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit_hash, str) or not hub_cache.COMMIT.fullmatch(commit_hash):
        raise _answer_error(connection, "no commit")
    return commit_hash


def list_files(connection: Connection, name: str, commit: str, *, nested: bool = False) -> list[HubFile]:
    """List the files of a commit: those at its top, or with `nested` all of them.

    Raises:
        HubError: if the hub does not list them.
    """
    listed: list[HubFile] = []
    path = f"{_make_path(connection, name)}/tree/{commit}{'?recursive=true' if nested else ''}"
    for _ in range(_MAX_PAGES):
        rows, path = connection.read_json_page(path)
        if not isinstance(rows, list):
            raise _answer_error(connection, "no list of files")
        listed += (file for row in rows if isinstance(row, dict) for file in read_listed_file(row, nested=nested))
        if not path:
            break
    return listed


def _make_path(connection: Connection, name: str) -> str:
    return f"/api/{connection.kind.folder}/{quote(name)}"


def read_listed_file(row: dict[str, object], *, nested: bool = False) -> Iterator[HubFile]:
    """Yield the file of an entry of the list, if its values are valid; they become names in the cache."""
    large = row.get("lfs")
    name, size = row.get("path"), row.get("size")
    digest = large.get("oid") if isinstance(large, dict) else row.get("oid")
    is_valid = isinstance(name, str) and isinstance(size, int) and isinstance(digest, str) and _is_safe(name, nested)
    if row.get("type") == "file" and is_valid and hub_cache.HASH.fullmatch(str(digest)):
        yield HubFile(str(name), int(str(size)), str(digest))


def _is_safe(name: str, nested: bool) -> bool:
    """Whether a file of this name is inside the folder that it is written to."""
    parts = PurePosixPath(name).parts
    is_normal = bool(name) and name == "/".join(parts) and "\\" not in name and "\0" not in name
    return is_normal and ".." not in parts and not name.startswith("/") and (nested or len(parts) == 1)


def _answer_error(connection: Connection, description: str) -> HubError:
    return HubError(
        f"{connection.endpoint} answers with {description}",
        "a hub, or a mirror of it",
        "check HF_ENDPOINT and the proxy",
    )
