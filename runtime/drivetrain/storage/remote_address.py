"""Addresses of files and folders in object stores: `s3://bucket/path`, `gs://bucket/path`, `https://host/path`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from drivetrain.errors import SpecError
from drivetrain.system.web import is_loopback

BUCKETS = ("s3", "gs")
"""Schemes of stores that can list, write and write conditionally."""
WEB = ("https", "http")
"""Schemes of web servers, from which single files are only read."""
POSSIBLE = "s3://BUCKET/PATH, gs://BUCKET/PATH"
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BadAddress(SpecError):
    """An address that cannot be used."""

    def __init__(self, description: str, possible: str = POSSIBLE, action: str = "correct the address") -> None:
        super().__init__(description, possible, action)


@dataclass(frozen=True)
class RemoteAddress:
    """Address of a file or folder in an object store, without credentials."""

    scheme: str
    host: str
    """Bucket, or the host and port of a web address."""
    path: str
    """Path without slashes at either end; empty for the whole bucket."""

    def __str__(self) -> str:
        return "/".join(filter(None, (f"{self.scheme}://{self.host}", self.path)))

    @property
    def name(self) -> str:
        """Last name of the path, or the bucket if the path is empty."""
        return self.path.rpartition("/")[2] or self.host

    @property
    def parent(self) -> RemoteAddress:
        """Address of the parent folder; the parent of a bucket is the bucket itself."""
        return RemoteAddress(self.scheme, self.host, self.path.rpartition("/")[0])

    @property
    def writable(self) -> bool:
        """Whether the store can be listed and written."""
        return self.scheme in BUCKETS

    def __truediv__(self, name: str) -> RemoteAddress:
        return RemoteAddress(self.scheme, self.host, "/".join(filter(None, (self.path, name.strip("/")))))


def is_remote(text: str) -> bool:
    """Return whether a text begins with the scheme of a store, and so is not a local path; `parse` checks the rest."""
    match = SCHEME.match(text)
    return match is not None and match[1].lower() in (*BUCKETS, *WEB)


def parse(text: str) -> RemoteAddress:
    """Parse an address.

    Raises:
        BadAddress: if it is not valid; the message does not repeat a password in the text.
    """
    match = SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if scheme not in (*BUCKETS, *WEB):
        raise BadAddress(f"{_hide_credentials(text)} is not an address of an object store")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise BadAddress(f"{_hide_credentials(text)} has no valid host or port") from None
    public_text = f"{scheme}://{(url.hostname or '')}{url.path}"
    if url.username or url.password or url.query or url.fragment:
        raise BadAddress(
            f"{public_text} is written with a user or password, or followed by ? or #",
            "an address without credentials, which come from the environment",
            "remove everything before the @ and from the ? or # on, and export the variables of your provider",
        )
    # url.hostname would be in small letters, and bucket names are case-sensitive.
    host = url.netloc
    if scheme in BUCKETS and (not _BUCKET.fullmatch(host) or port is not None):
        raise BadAddress(f"{public_text} names no bucket")
    if not host or (scheme == "http" and not is_loopback(url.hostname)):
        description = f"{public_text} names no host" if not host else f"{public_text} is not encrypted"
        raise BadAddress(description, "https://HOST/PATH, or http:// of this machine", "write https://")
    path = url.path.strip("/")
    if path and {"", ".", ".."} & set(path.split("/")):
        raise BadAddress(f"{public_text} has an empty name, or `.` or `..`, in its path")
    return RemoteAddress(scheme, host, path)


def _hide_credentials(text: str) -> str:
    """Quote a text without possible credentials: drop everything before an @ and after a question mark."""
    return repr(text.rpartition("@")[2].partition("?")[0])
