"""The address of something in an object store: `s3://bucket/path`, `gs://bucket/path`, `https://host/path`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from drivetrain.errors import SpecError
from drivetrain.system.web import is_loopback

BUCKETS = ("s3", "gs")
"""Schemes of stores that list, write and write conditionally."""
WEB = ("https", "http")
"""Schemes of servers that are only read, each file by its own address."""
POSSIBLE = "s3://BUCKET/PATH, gs://BUCKET/PATH"
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BadAddress(SpecError):
    """An address that cannot be used."""

    def __init__(self, description: str, possible: str = POSSIBLE, action: str = "correct the address") -> None:
        super().__init__(description, possible, action)


@dataclass(frozen=True)
class RemoteAddress:
    """A place in an object store; it holds no credential."""

    scheme: str
    host: str
    """The bucket; of a web address the host with its port."""
    path: str
    """Without slashes at either end; empty for the whole bucket."""

    def __str__(self) -> str:
        return "/".join(filter(None, (f"{self.scheme}://{self.host}", self.path)))

    @property
    def name(self) -> str:
        """The last part of the path, or the bucket."""
        return self.path.rpartition("/")[2] or self.host

    @property
    def parent(self) -> RemoteAddress:
        """The place above; of a bucket the bucket itself."""
        return RemoteAddress(self.scheme, self.host, self.path.rpartition("/")[0])

    @property
    def writable(self) -> bool:
        """Whether it can be listed and written."""
        return self.scheme in BUCKETS

    def __truediv__(self, name: str) -> RemoteAddress:
        return RemoteAddress(self.scheme, self.host, "/".join(filter(None, (self.path, name.strip("/")))))


def is_remote(text: str) -> bool:
    """Whether a text has the scheme of a store, so that it is no local path; `parse` says whether it is correct."""
    match = SCHEME.match(text)
    return match is not None and match[1].lower() in (*BUCKETS, *WEB)


def parse(text: str) -> RemoteAddress:
    """Return the address that a text names.

    Raises:
        BadAddress: with what is wrong; a password in the text is not repeated.
    """
    match = SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if scheme not in (*BUCKETS, *WEB):
        raise BadAddress(f"{_cut(text)} is no address of an object store")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadAddress(f"{_cut(text)} has no valid host or port") from None
    public_text = f"{scheme}://{(parts.hostname or '')}{parts.path}"
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadAddress(
            f"{public_text} is written with a user or password, or followed by ? or #",
            "an address without credentials, which come from the environment",
            "remove what stands before the @ and from the ? or # on, and export the variables of your provider",
        )
    # Not parts.hostname, which is in small letters.
    host = parts.netloc
    if scheme in BUCKETS and (not _BUCKET.fullmatch(host) or port is not None):
        raise BadAddress(f"{public_text} names no bucket")
    if not host or (scheme == "http" and not is_loopback(parts.hostname)):
        description = f"{public_text} names no host" if not host else f"{public_text} is not encrypted"
        raise BadAddress(description, "https://HOST/PATH, or http:// of this machine", "write https://")
    path = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise BadAddress(f"{public_text} has an empty part, or one of dots, in its path")
    return RemoteAddress(scheme, host, path)


def _cut(text: str) -> str:
    """A text without what may be a credential: all before an @, all after a question mark."""
    return repr(text.rpartition("@")[2].partition("?")[0])
