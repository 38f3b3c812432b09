"""One place in an object store: read, written, listed, with bounded retries; obstore does the transport.

obstore reads credentials and endpoint from the environment of this process, and renews those that expire.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from drivetrain.errors import StorageError
from drivetrain.storage import store_variables
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble, translate
from drivetrain.system.installation import INSTALL_STORAGE

PART_BYTES = 8 << 20
"""Bytes of one request of a longer upload, and of one piece of a download."""
AT_ONCE = 4
"""Requests of one upload side by side."""
PROBE_NAME = ".drivetrain-probe-"
"""Begins the name of the object by which `check_writable` tries a store; it is no part of a run."""
_ENDPOINT = re.compile(
    r"https?://([\w.~!$&'()*+,;=:%@-]*@)?[\w.:\[\]-]+([/?#][\w.~!$&'()*+,;=:%@/?#\[\]-]*)?", re.ASCII | re.IGNORECASE
)
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long a store may take.

    Args:
        retries: seconds in which a request that failed is tried again.
        silence: seconds without a byte until a request has failed.
        connect: seconds until there must be a connection.
    """

    retries: float = 60.0
    silence: float = 60.0
    connect: float = 10.0


@dataclass(frozen=True)
class StoredObject:
    """An object in a store."""

    name: str
    """Relative to the place that was opened."""
    bytes: int
    tag: str
    """Changes with the content: the ETag, or of a web server without one the time; empty if there is neither."""


class ObjectStore:
    """The objects below one address.

    All methods raise RemoteError if the store does not do what was asked; names are relative, with slashes.
    """

    def __init__(self, address: RemoteAddress, patience: Patience = Patience()) -> None:
        """
        Args:
            address: of a bucket or below it, or of a web server.

        Raises:
            StorageError: if the client is not installed.
            RemoteError: if the settings of the environment make no store.
        """
        self.address = address
        self.patience = patience
        self._store = self._ask("open", "", lambda: _open_store(address, patience))

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        return self._ask("read", name, lambda: bytes(_client().get(self._store, name).bytes()))

    def find(self, name: str) -> bytes | None:
        """Find the content of an object; None if there is none."""
        return _none_if(Trouble.MISSING, lambda: self.get(name))

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces; a connection that is cut is taken up again where it ended."""
        pieces = self._ask(
            "read", name, lambda: iter(_client().get(self._store, name).stream(min_chunk_size=PART_BYTES))
        )
        while (piece := self._ask("read", name, lambda: next(pieces, None))) is not None:
            yield bytes(piece)

    def get_file(self, name: str, path: Path, count: Callable[[int], None] = lambda size: None) -> None:
        """Write the content of an object to a file, which is replaced when all of it is there.

        Args:
            path: of the file; its folders are made.
            count: called with the bytes of each piece; what it raises ends the download, and the file stays as it was.

        Raises:
            OSError: if it cannot be written.
        """
        temporary = path.with_name(f".tmp-{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for piece in self.stream(name):
                file.write(piece)
                count(len(piece))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def find_head(self, name: str) -> StoredObject | None:
        """Find size and tag of an object; None if there is none."""
        entry = _none_if(Trouble.MISSING, lambda: self._ask("read", name, lambda: _client().head(self._store, name)))
        return self._object(entry) if entry else None

    def objects(self, below: str = "") -> list[StoredObject]:
        """Return all objects below a folder, by name."""
        entries = self._again("list", below, lambda: _client().list(self._store, below or None).collect())
        return sorted(map(self._object, entries), key=lambda each: each.name)

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the address."""
        answer = self._again("list", "", lambda: _client().list_with_delimiter(self._store))
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in answer["common_prefixes"])

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._ask("write", name, lambda: _client().put(self._store, name, content, use_multipart=False))

    def put_file(self, name: str, file: BinaryIO, moved: Callable[[], None] = lambda: None) -> None:
        """Write an object from an open file, in parts if it is long; nothing is visible before the last one.

        Args:
            moved: called whenever a part of it has been taken.

        Raises:
            OSError: if the file cannot be read.
        """
        first = file.read(PART_BYTES)
        if len(first) < PART_BYTES:
            self.put(name, first)
            return

        def parts() -> Iterator[bytes]:
            part = first
            while part:
                yield part
                moved()
                part = file.read(PART_BYTES)

        long = {"chunk_size": PART_BYTES, "max_concurrency": AT_ONCE}
        self._ask("write", name, lambda: _client().put(self._store, name, parts(), **long))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that must not exist; returns False if it exists."""
        request = functools.partial(_client().put, self._store, name, content, use_multipart=False, mode="create")
        return _none_if(Trouble.CHANGED, lambda: self._ask("write", name, request)) is not None

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""
        for name in names:
            request = functools.partial(_client().delete, self._store, name)
            _none_if(Trouble.MISSING, functools.partial(self._ask, "remove", name, request))

    def _object(self, entry: Mapping[str, Any]) -> StoredObject:
        tag = entry["e_tag"] or ""
        # The client gives the year 1970 where a web server gives no time.
        if not tag and not self.address.writable and entry["last_modified"].timestamp():
            tag = entry["last_modified"].isoformat()
        return StoredObject(str(entry["path"]), int(entry["size"]), str(tag))

    def _again(self, task: str, name: str, request: Callable[[], T]) -> T:
        """As `_ask`, and again after a passing failure: for lists, which the client does not resume once they are cut."""
        pause, end = 0.1, time.monotonic() + self.patience.retries
        while True:
            try:
                return self._ask(task, name, request)
            except RemoteError as error:
                if error.trouble is not Trouble.AWAY or time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _ask(self, task: str, name: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except Exception as error:
            if not isinstance(error, _client().exceptions.BaseError | FileNotFoundError):
                raise
            raise translate(error, self.address / name if name else self.address, task) from None


def _none_if(kind: Trouble, request: Callable[[], T]) -> T | None:
    """Return the answer to a request; None if the store has trouble of this kind."""
    try:
        return request()
    except RemoteError as error:
        if error.trouble is kind:
            return None
        raise


def check_writable(store: ObjectStore) -> None:
    """Check that a store lists, reads and removes, and creates an object only once.

    Raises:
        RemoteError: with what the store refuses; also if it takes conditions without keeping them, since two machines
            would then write one run.
    """
    store.folders()
    name, problem = f"{PROBE_NAME}{uuid.uuid4().hex}", "it was not tried"
    try:
        store.create(name, b"first")
        store.get(name)
        problem = "it wrote over an object that must not exist" if store.create(name, b"second") else ""
    except RemoteError as error:
        if error.trouble is not Trouble.REFUSED or "501" not in error.given:
            raise
        problem = "it answered 501"
    finally:
        with contextlib.suppress(RemoteError) if problem else contextlib.nullcontext():
            store.delete([name])
    if problem:
        raise RemoteError(
            Trouble.REFUSED,
            f"{store.address}: the store has no conditional writes: {problem}",
            "a store in which one of two writers is refused (If-None-Match): those of Amazon and Google",
            "update the store, or name another one",
        )


def _open_store(address: RemoteAddress, patience: Patience) -> Any:
    """Return the client's own store, with every wait bounded."""
    variable, _, endpoint = store_variables.endpoint(address.scheme).partition("=")
    url = os.environ.get(variable, "")
    if variable and not _is_address(url):
        raise StorageError(
            f"{variable}={endpoint} is no address of a store",
            "http://HOST:PORT, https://HOST; with %2F for a / in a password",
            f"correct it, or unset {variable} for the provider's own",
        )
    for name, path in store_variables.list_files(address.scheme).items():
        if os.path.isdir(path) or not os.access(path, os.R_OK):
            raise StorageError(
                f"{name}: {path} is not there, or cannot be read",
                "a file with a credential, or for SSL_CERT_FILE with certificates",
                f"correct it, or unset {name}",
            )
    from obstore import store as stores

    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=patience.connect),
        "read_timeout": timedelta(seconds=patience.silence),
        # The client's default of 30 s for a whole request would cut every long transfer.
        "timeout": timedelta(days=1),
        "allow_http": address.scheme == "http" or endpoint.lower().startswith("http://"),
    }
    if authority := os.environ.get("SSL_CERT_FILE"):
        options["root_certificate"] = Path(authority).read_bytes()
    retry: Any = {
        "max_retries": 50,
        "retry_timeout": timedelta(seconds=patience.retries),
        "backoff": {"max_backoff": timedelta(seconds=5)},
    }
    settings: dict[str, Any] = {"client_options": options, "retry_config": retry}
    if not address.writable:
        return stores.HTTPStore.from_url(str(address), **settings)
    if url and address.scheme == "s3":
        # Of AWS_ENDPOINT_URL and AWS_ENDPOINT the client takes the one that was set last.
        settings["endpoint"] = url
    bucket = stores.S3Store if address.scheme == "s3" else stores.GCSStore
    return bucket(address.host, prefix=address.path or None, **settings)


def _is_address(url: str) -> bool:
    """Return whether the client takes a URL as endpoint; with another one it would end the process."""
    from obstore import store as stores

    with contextlib.suppress(ValueError):
        stores.HTTPStore.from_url(url)
        return _ENDPOINT.fullmatch(url) is not None
    return False


def _client() -> Any:
    """obstore, imported when a store is used, since it is an extra and takes a moment.

    Raises:
        StorageError: if it is not installed.
    """
    try:
        import obstore
    except ImportError:
        raise StorageError(
            "object stores are read and written by obstore, which is not installed here",
            "obstore, which the images have",
            f"`{INSTALL_STORAGE}`",
        ) from None
    return obstore
