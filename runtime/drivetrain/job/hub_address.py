"""Addresses of data on the Hugging Face hub, in the form of its own libraries: hf://datasets/OWNER/NAME[@REVISION][/PATH]."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

SCHEME = "hf://"
FORM = "hf://datasets/OWNER/NAME, optionally with @REVISION and a path in the repository"
MAIN = "main"
_NAME = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    rf"hf://datasets/(?P<name>{_NAME}/{_NAME}|{_NAME}(?=(@[^/]*)?$))"
    r"(@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[\w.%-]+))?(/(?P<path>.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubAddress:
    """A dataset on the hub, or a file or folder in it."""

    name: str
    revision: str = MAIN
    """Branch, tag or commit."""
    path: str = ""
    """Path of a file or folder; empty for the whole dataset."""

    @property
    def is_fixed(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))

    @property
    def root(self) -> str:
        """Address of the dataset, without a path."""
        return f"{SCHEME}datasets/{self.name}" + ("" if self.revision == MAIN else f"@{quote(self.revision, safe='')}")

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    def at(self, commit: str) -> HubAddress:
        """Return the same address at a commit."""
        return replace(self, revision=commit)

    def below(self, path: str) -> HubAddress:
        """Return the address of another path in the same dataset."""
        return replace(self, path=path)


def is_on_hub(text: object) -> bool:
    """Return whether a path in a spec is an address on the hub."""
    return isinstance(text, str) and text.startswith("hf:")


def parse(text: str) -> HubAddress | None:
    """Parse an address; returns None for any other text."""
    match = _ADDRESS.fullmatch(text)
    if not match:
        return None
    path = (match["path"] or "").rstrip("/")
    plain = path == "" or path == "/".join(PurePosixPath(path).parts)
    if not plain or path.startswith("/") or ".." in PurePosixPath(path).parts:
        return None
    return HubAddress(match["name"], unquote(match["revision"] or MAIN), path)
