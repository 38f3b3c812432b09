"""Asks the hub which commit a revision is, and which files a commit has."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote

from drivetrain.pretrained.hub_cache import COMMIT, HASH, HubFile
from drivetrain.pretrained.hub_connection import Connection


def find_commit(connection: Connection, revision: str) -> str:
    """The commit of a branch or tag.

    Raises:
        HubError: if the hub does not tell it.
    """
    answer = next(connection.read_pages(f"revision/{quote(revision, safe='')}"))
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise connection.answer_error("no commit")
    return commit


def list_files(connection: Connection, commit: str) -> list[HubFile]:
    """List all files of a commit.

    Raises:
        HubError: if the hub does not list them.
    """
    listed: list[HubFile] = []
    for rows in connection.read_pages(f"tree/{commit}?recursive=true"):
        if not isinstance(rows, list):
            raise connection.answer_error("no list of files")
        listed += filter(None, map(read_listed_file, rows))
    return listed


def read_listed_file(row: object) -> HubFile | None:
    """The file of an entry of the list; None if its values cannot become names in the cache."""
    if not isinstance(row, dict) or row.get("type") != "file":
        return None
    name, size, large = row.get("path"), row.get("size"), row.get("lfs")
    digest = large.get("oid") if isinstance(large, dict) else row.get("oid")
    if not (isinstance(name, str) and isinstance(size, int) and isinstance(digest, str) and HASH.fullmatch(digest)):
        return None
    return HubFile(name, size, digest) if _is_safe(name) else None


def _is_safe(name: str) -> bool:
    """Whether a file of this name is inside the folder that it is written to."""
    parts = PurePosixPath(name).parts
    is_normal = name == "/".join(parts) and "\\" not in name and "\0" not in name
    return bool(parts) and is_normal and ".." not in parts and not name.startswith("/")
