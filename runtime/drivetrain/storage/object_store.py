"""Reads, writes and lists objects below one address of an object store, with bounded retries, by the library obstore.

obstore reads credentials and endpoint from the environment of this process, and renews credentials that expire.
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

CHUNK_BYTES = 8 << 20
"""Size of the chunks in which long objects are uploaded and downloaded."""
PARALLEL_CHUNKS = 4
"""Number of chunks of one upload that are sent at the same time."""
PROBE_NAME = ".drivetrain-probe-"
"""Prefix of the object with which `check_writable` tests a store; it does not belong to a run."""
_ENDPOINT = re.compile(
    r"https?://([\w.~!$&'()*+,;=:%@-]*@)?[\w.:\[\]-]+([/?#][\w.~!$&'()*+,;=:%@/?#\[\]-]*)?", re.ASCII | re.IGNORECASE
)
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """Time limits for a store.

    Args:
        retries: seconds during which a failed request is repeated.
        silence: seconds without a byte after which a request has failed.
        connect: seconds until there must be a connection.
    """

    retries: float = 60.0
    silence: float = 60.0
    connect: float = 10.0


@dataclass(frozen=True)
class StoredObject:
    """An object in a store."""

    name: str
    """Name relative to the address of the store."""
    bytes: int
    tag: str
    """Text that changes with the content: the ETag, or the time of a web server's file; empty if there is neither."""


class ObjectStore:
    """The objects below one address.

    All methods raise RemoteError if a request fails; names are relative to the address, with slashes.
    """

    def __init__(self, address: RemoteAddress, patience: Patience = Patience()) -> None:
        """
        Args:
            address: address of a bucket, of a folder in it, or of a web server.
            patience: time limits of all requests.

        Raises:
            StorageError: if obstore is not installed.
            RemoteError: if the settings of the environment are not valid.
        """
        self.address = address
        self.patience = patience
        self._store = self._ask("open", "", lambda: _open_store(address, patience))

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        return self._ask("read", name, lambda: bytes(_client().get(self._store, name).bytes()))

    def find(self, name: str) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        return _none_if(Trouble.MISSING, lambda: self.get(name))

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in chunks; after a broken connection, the download continues at the same byte."""
        chunks = self._ask(
            "read", name, lambda: iter(_client().get(self._store, name).stream(min_chunk_size=CHUNK_BYTES))
        )
        for chunk in iter(lambda: self._ask("read", name, lambda: next(chunks, None)), None):
            yield bytes(chunk)

    def get_file(self, name: str, path: Path, count: Callable[[int], None] = lambda size: None) -> None:
        """Download an object to a file, which is replaced only when the content is complete.

        Args:
            name: name of the object.
            path: path of the file; missing folders are created.
            count: function that is called with the size of each chunk in bytes; an exception from it ends the download.

        Raises:
            OSError: if the file cannot be written.
        """
        temporary = path.with_name(f".tmp-{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for chunk in self.stream(name):
                file.write(chunk)
                count(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def find_head(self, name: str) -> StoredObject | None:
        """Return size and tag of an object; None if it does not exist."""
        entry = _none_if(Trouble.MISSING, lambda: self._ask("read", name, lambda: _client().head(self._store, name)))
        return self._object(entry) if entry else None

    def objects(self, below: str = "") -> list[StoredObject]:
        """Return all objects below a folder, by name."""
        entries = self._ask_repeatedly("list", below, lambda: _client().list(self._store, below or None).collect())
        return sorted(map(self._object, entries), key=lambda stored: stored.name)

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the address."""
        answer = self._ask_repeatedly("list", "", lambda: _client().list_with_delimiter(self._store))
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in answer["common_prefixes"])

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._ask("write", name, lambda: _client().put(self._store, name, content, use_multipart=False))

    def put_file(self, name: str, file: BinaryIO, moved: Callable[[], None] = lambda: None) -> None:
        """Write an object from an open file, a long one in chunks; readers see nothing before the last chunk is stored.

        Args:
            name: name of the object.
            file: open file.
            moved: function that is called after each chunk.

        Raises:
            OSError: if the file cannot be read.
        """
        first_chunk = file.read(CHUNK_BYTES)
        if len(first_chunk) < CHUNK_BYTES:
            self.put(name, first_chunk)
            return

        def read_chunks() -> Iterator[bytes]:
            chunk = first_chunk
            while chunk:
                yield chunk
                moved()
                chunk = file.read(CHUNK_BYTES)

        options = {"chunk_size": CHUNK_BYTES, "max_concurrency": PARALLEL_CHUNKS}
        self._ask("write", name, lambda: _client().put(self._store, name, read_chunks(), **options))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that must not exist; returns False if it exists."""
        request = functools.partial(_client().put, self._store, name, content, use_multipart=False, mode="create")
        return _none_if(Trouble.CHANGED, lambda: self._ask("write", name, request)) is not None

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; an object that does not exist is not an error."""
        for name in names:
            request = functools.partial(_client().delete, self._store, name)
            _none_if(Trouble.MISSING, functools.partial(self._ask, "remove", name, request))

    def _object(self, entry: Mapping[str, Any]) -> StoredObject:
        tag = entry["e_tag"] or ""
        # obstore reports the year 1970 if a web server sends no time.
        if not tag and not self.address.writable and entry["last_modified"].timestamp():
            tag = entry["last_modified"].isoformat()
        return StoredObject(str(entry["path"]), int(entry["size"]), str(tag))

    def _ask_repeatedly(self, task: str, name: str, request: Callable[[], T]) -> T:
        """Send a request, and repeat it after a passing failure.

        It is for lists: obstore itself repeats other requests, but does not resume a list after a broken connection.
        """
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
        """Send a request; raises RemoteError if it fails. `task` is its verb, such as read, for the message."""
        try:
            return request()
        except Exception as error:
            if not isinstance(error, _client().exceptions.BaseError | FileNotFoundError):
                raise
            raise translate(error, self.address / name if name else self.address, task) from None


def _none_if(kind: Trouble, request: Callable[[], T]) -> T | None:
    """Return the answer to a request; None if it fails in this way."""
    try:
        return request()
    except RemoteError as error:
        if error.trouble is kind:
            return None
        raise


def check_writable(store: ObjectStore) -> None:
    """Check that a store lists, reads and removes objects, and creates an object only once.

    Raises:
        RemoteError: if the store refuses a request, or ignores the condition of a request: two machines could then
            write to one run.
    """
    store.folders()
    name, problem = f"{PROBE_NAME}{uuid.uuid4().hex}", "it was not tried"
    try:
        store.create(name, b"first")
        store.get(name)
        problem = "it wrote over an object that must not exist" if store.create(name, b"second") else ""
    except RemoteError as error:
        if error.status != "501":  # not implemented
            raise
        problem = "it answered 501"
    finally:
        with contextlib.suppress(RemoteError) if problem else contextlib.nullcontext():
            store.delete([name])
    if problem:
        raise RemoteError(
            Trouble.REFUSED,
            f"{store.address}: the store has no conditional writes: {problem}",
            "a store that refuses one of two writers (If-None-Match), such as the stores of Amazon and Google",
            "update the store, or name another one",
        )


def _open_store(address: RemoteAddress, patience: Patience) -> Any:
    """Return obstore's object for an address, with a time limit for every wait."""
    variable, _, endpoint = store_variables.endpoint(address.scheme).partition("=")
    url = os.environ.get(variable, "")
    if variable and not _is_address(url):
        raise StorageError(
            f"{variable}={endpoint} is not an address of a store",
            "http://HOST:PORT, https://HOST; with %2F for a / in a password",
            f"correct it, or unset {variable} for the provider's own endpoint",
        )
    for name, path in store_variables.list_files(address.scheme).items():
        if os.path.isdir(path) or not os.access(path, os.R_OK):
            raise StorageError(
                f"{name}: {path} does not exist, or cannot be read",
                "a file with a credential; for SSL_CERT_FILE a file with certificates",
                f"correct it, or unset {name}",
            )
    from obstore import store as stores

    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=patience.connect),
        "read_timeout": timedelta(seconds=patience.silence),
        # obstore's default of 30 s for a whole request would end every long transfer.
        "timeout": timedelta(days=1),
        "allow_http": address.scheme == "http" or endpoint.lower().startswith("http://"),
    }
    authority = os.environ.get("SSL_CERT_FILE")
    if authority:
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
        # obstore would otherwise use AWS_ENDPOINT_URL or AWS_ENDPOINT, depending on which was set last.
        settings["endpoint"] = url
    bucket = stores.S3Store if address.scheme == "s3" else stores.GCSStore
    return bucket(address.host, prefix=address.path or None, **settings)


def _is_address(url: str) -> bool:
    """Return whether obstore accepts a URL as endpoint; a URL that it does not accept would end the process."""
    from obstore import store as stores

    with contextlib.suppress(ValueError):
        stores.HTTPStore.from_url(url)
        return _ENDPOINT.fullmatch(url) is not None
    return False


def _client() -> Any:
    """Import obstore only when a store is used, because it is optional and takes a moment to load.

    Raises:
        StorageError: if it is not installed.
    """
    try:
        import obstore
    except ImportError:
        raise StorageError(
            "object stores are read and written by obstore, which is not installed here",
            "obstore, which the images contain",
            f"`{INSTALL_STORAGE}`",
        ) from None
    return obstore
