"""Addresses of data on the Hugging Face hub, as its own libraries write them: hf://datasets/OWNER/NAME[@REVISION][/PATH]."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

SCHEME = "hf://"
FORM = "hf://datasets/OWNER/NAME, with @REVISION and a path of the repository if wanted"
MAIN = "main"
_PART = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    rf"hf://datasets/(?P<name>{_PART}/{_PART}|{_PART}(?=(@[^/]*)?$))"
    r"(@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[\w.%-]+))?(/(?P<path>.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubAddress:
    """A dataset on the hub, or a file or folder of it."""

    name: str
    revision: str = MAIN
    """A branch, a tag or a commit."""
    path: str = ""
    """Of a file or folder; empty for the whole dataset."""

    @property
    def is_fixed(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))

    @property
    def root(self) -> str:
        """The dataset, without a path."""
        return f"{SCHEME}datasets/{self.name}" + ("" if self.revision == MAIN else f"@{quote(self.revision, safe='')}")

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    def at(self, commit: str) -> HubAddress:
        """Return the same at a commit."""
        return replace(self, revision=commit)

    def below(self, path: str) -> HubAddress:
        """Another path of the same dataset."""
        return replace(self, path=path)


def is_on_hub(text: object) -> bool:
    """Return whether a path in a spec means the hub."""
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
