"""Downloads one file of the hub: resumes an interrupted download, compares the hash, and only then names the file."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.pretrained import hub_connection
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_error import HubError
from drivetrain.system.files import storage_error, sync_folder

PART = ".part"
"""Suffix of an incomplete file; the next process resumes it."""
PROGRESS_SECONDS = 5.0
"""Time between two lines of progress."""
MAX_STALLED_ATTEMPTS = 4
"""Successive attempts without a new byte after which a download fails."""
_CHUNK_BYTES = 1 << 18
_SPARE_BYTES = 64 << 20
"""Space that must stay free on the disk."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    name: str
    size: int
    """Size in bytes."""
    hash: str
    """SHA-256 of a large file, or the 40 digits by which git names a small one."""

    def is_in(self, path: Path) -> bool:
        """Whether a file on the disk has this content."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            if len(self.hash) == 64:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.hash
            digest = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest() == self.hash


@dataclass
class Progress:
    """Prints amount, rate and remaining time of a download every few seconds."""

    total: int
    """Bytes of all files."""
    say: Callable[[str], None]
    done: int = 0
    """Bytes that are on the disk."""
    _begun_at: float = field(default_factory=time.monotonic)
    _printed_at: float = field(default_factory=time.monotonic)
    _received: int = 0

    def add(self, count: int, *, received: bool = True) -> None:
        """Count bytes on the disk; only `received` ones count for the rate."""
        self.done += count
        if received:
            self._received += count
        now = time.monotonic()
        if now - self._printed_at < PROGRESS_SECONDS or self.done >= self.total:
            return
        self._printed_at = now
        rate = max(1.0, self._received / (now - self._begun_at))
        seconds_left = (self.total - self.done) / rate
        self.say(
            f"hub: {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB, {rate / 1e6:,.2f} MB/s, about {_format_duration(seconds_left)} left"
        )


def _format_duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 90 else f"{seconds / 60:,.0f} min"


def download(connection: Connection, url: str, hub_file: HubFile, target: Path, progress: Progress) -> None:
    """Download a file to `target`, under another name until it is complete and compared with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        StorageError: if it cannot be written.
    """
    part = target.with_name(f"{target.name}{PART}")
    try:
        _check_space(part, hub_file)
        receive(connection, url, hub_file, part, progress)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise _storage_error(target, error) from None


def receive(connection: Connection, url: str, file: HubFile, part: Path, progress: Progress) -> None:
    """Download a file, resumed where it was cut, and compare it with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        OSError: if it cannot be written.
    """
    for is_last in (False, True):
        _receive_all(connection, url, file, part, progress)
        if file.is_in(part):
            return
        part.unlink()
        progress.add(-file.size, received=False)
        if is_last:
            raise HubError(
                f"{file.name} has another hash than the hub says, in two downloads",
                f"a file with {'SHA-256' if len(file.hash) == 64 else 'the git hash'} {file.hash}",
                "try again later; if it stays so, a proxy or a mirror (HF_ENDPOINT) changes files",
            )
        connection.say(f"hub: {file.name} has another hash than the hub says; downloading it again")


def _storage_error(path: Path, error: OSError) -> StorageError:
    general = storage_error(path, error)
    return StorageError(
        general.given, general.possible, f"{general.action.partition(',')[0]}, or set HF_HOME to another folder"
    )


def _check_space(part: Path, file: HubFile) -> None:
    part_size = part.stat().st_size if part.exists() else 0
    free = shutil.disk_usage(part.parent).free
    if file.size - part_size + _SPARE_BYTES > free:
        raise StorageError(
            f"{part.parent}: {file.name} needs {(file.size - part_size) / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            "a folder with free space",
            "free some space, or set HF_HOME to another folder",
        )


def _receive_all(connection: Connection, url: str, file: HubFile, part: Path, progress: Progress) -> None:
    """Append to the part until it has the whole size; repeat requests that end early."""
    part_size = part.stat().st_size if part.exists() else 0
    if part_size > file.size:
        part.unlink()
        part_size = 0
    part.touch()
    progress.add(part_size, received=False)
    stalls, first_size = 0, part_size
    while part_size < file.size:
        new_size, reason = _receive_some(connection, url, file, part, progress, patient=part_size > first_size)
        stalls, part_size = (0 if new_size > part_size else stalls + 1), new_size
        if part_size == file.size:
            return
        amount = f"{part_size / 1e6:,.1f} of {file.size / 1e6:,.1f} MB"
        if stalls == MAX_STALLED_ATTEMPTS:
            raise HubError(
                f"{file.name} ends after {amount}: {reason}",
                "the whole file",
                "call the same command again: it resumes there; if it ends there again, check the proxy or mirror",
            )
        connection.say(f"hub: {file.name} was cut after {amount}: {reason}; resuming")
        time.sleep(hub_connection.FIRST_PAUSE_SECONDS * 2**stalls)


def _receive_some(
    connection: Connection, url: str, file: HubFile, part: Path, progress: Progress, *, patient: bool
) -> tuple[int, str]:
    """Send one request; returns the size of the part afterwards, and why the request ended.

    With `patient`, a hub that cannot be reached ends only this request.
    """
    part_size = part.stat().st_size
    try:
        answer = connection.open(url, start=part_size)
    except HubError as error:
        if error.ended or (error.offline and patient):
            return part_size, error.given
        raise
    with answer:
        if part_size and not _continues(answer, part_size):
            os.truncate(part, 0)
            progress.add(-part_size, received=False)
        reason = _append(answer, part, file.size, progress)
    new_size = part.stat().st_size
    if new_size > file.size:
        os.truncate(part, 0)
        progress.add(-new_size, received=False)
        new_size = 0
    return new_size, reason


def _continues(answer: HTTPResponse, start: int) -> bool:
    """Whether the answer begins at the requested byte; some servers send the whole file."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _append(answer: HTTPResponse, part: Path, size: int, progress: Progress) -> str:
    """Append the answer to the part; returns why it ended."""
    with part.open("ab") as file:
        while (missing_bytes := size + 1 - file.tell()) > 0:
            try:
                chunk = answer.read1(min(_CHUNK_BYTES, missing_bytes))
            except (OSError, HTTPException) as error:
                return str(error) or type(error).__name__
            if not chunk:
                return "the connection was closed"
            file.write(chunk)
            progress.add(len(chunk))
    return "the file is longer than the hub says"
