"""Downloads one file of the hub: resumes an interrupted download, compares the hash, and only then names the file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from drivetrain.errors import StorageError
from drivetrain.pretrained import hub_connection
from drivetrain.pretrained.hub_cache import PART, HubFile
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_error import HubError
from drivetrain.system.files import storage_error, sync_file, sync_folder

PROGRESS_SECONDS = 5.0
"""Time between two lines of progress."""
MAX_STALLED_ATTEMPTS = 4
"""Successive attempts without a new byte after which a download fails."""
_CHUNK_BYTES = 1 << 18
_SPARE_BYTES = 64 << 20
"""Space that must stay free on the disk."""


@dataclass
class Progress:
    """Prints amount, rate and remaining time of a download every few seconds."""

    total: int = 0
    """Bytes of all files."""
    say: Callable[[str], None] = lambda line: None
    done: int = 0
    """Bytes that are on the disk."""
    _begun_at: float = field(default_factory=time.monotonic)
    _printed_at: float = field(default_factory=time.monotonic)
    _received: int = 0

    def add(self, count: int) -> None:
        """Count bytes that were received."""
        self.done += count
        self._received += count
        now = time.monotonic()
        if now - self._printed_at < PROGRESS_SECONDS or self.done >= self.total:
            return
        self._printed_at = now
        rate = max(1.0, self._received / (now - self._begun_at))
        seconds_left = (self.total - self.done) / rate
        time_left = f"{seconds_left:,.0f} s" if seconds_left < 90 else f"{seconds_left / 60:,.0f} min"
        amount = f"{self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        self.say(f"hub: {amount}, {rate / 1e6:,.2f} MB/s, about {time_left} left")


def download(connection: Connection, commit: str, file: HubFile, target: Path, progress: Progress) -> None:
    """Download a file to `target`, under another name until it is complete and compared with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        StorageError: if it cannot be written.
    """
    part = target.with_name(f"{target.name}{PART}")
    try:
        _check_space(part, file)
        receive(connection, commit, file, part, progress)
        sync_file(part)
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        general = storage_error(target, error)
        action = f"{general.action.partition(',')[0]}, or set HF_HOME to another folder"
        raise StorageError(general.given, general.possible, action) from None


def _check_space(part: Path, file: HubFile) -> None:
    missing_bytes = file.size - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(part.parent).free
    if missing_bytes + _SPARE_BYTES > free:
        raise StorageError(
            f"{part.parent}: {file.name} needs {missing_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            "a folder with free space",
            "free some space, or set HF_HOME to another folder",
        )


def receive(connection: Connection, commit: str, file: HubFile, part: Path, progress: Progress) -> None:
    """Download a file, resumed where it was cut, and compare it with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        OSError: if it cannot be written.
    """
    for is_last in (False, True):
        with part.open("ab") as sink:
            progress.done += sink.tell()
            if sink.tell() > file.size:
                _restart(sink, progress)
            _receive_bytes(connection, commit, file, sink, progress)
        if file.is_in(part):
            return
        part.unlink()
        progress.done -= file.size
        if is_last:
            raise HubError(
                f"{file.name} has another hash than the hub says, in two downloads",
                f"a file with {'SHA-256' if len(file.hash) == 64 else 'the git hash'} {file.hash}",
                "try again later; if it stays so, a proxy or a mirror (HF_ENDPOINT) changes files",
            )
        connection.say(f"hub: {file.name} has another hash than the hub says; downloading it again")


def _receive_bytes(
    connection: Connection, commit: str, file: HubFile, sink: BinaryIO, progress: Progress, part: range | None = None
) -> bool:
    """Append a file, or a part of it, to what the sink has of it; repeat requests that end early.

    Returns:
        False if the server sends the whole file for the part.
    """
    url = connection.make_file_url(commit, file.name)
    start, size = (part.start, len(part)) if part else (0, file.size)
    first_done, stalls = sink.tell(), 0
    while (done := sink.tell()) < size:
        try:
            with connection.open(url, start=start + done, last=part[-1] if part else None) as answer:
                if not _continues(answer, start + done):
                    if part:
                        return False
                    _restart(sink, progress)
                reason = _append(answer, sink, size, progress)
        except HubError as error:
            # Once bytes came, a hub that cannot be reached is an interruption.
            if not error.ended and not (error.offline and done > first_done):
                raise
            reason = error.given
        if sink.tell() == size:
            break
        stalls = 0 if sink.tell() > done else stalls + 1
        amount = f"{sink.tell() / 1e6:,.1f} of {size / 1e6:,.1f} MB"
        if stalls == MAX_STALLED_ATTEMPTS:
            raise HubError(
                f"{file.name} ends after {amount}: {reason}",
                "the whole file",
                "call the same command again: it resumes there; if it ends there again, check the proxy or mirror",
            )
        connection.say(f"hub: {file.name} was cut after {amount}: {reason}; resuming")
        time.sleep(hub_connection.FIRST_PAUSE_SECONDS * 2**stalls)
    return True


def _restart(sink: BinaryIO, progress: Progress) -> None:
    progress.done -= sink.tell()
    sink.seek(0)
    sink.truncate()


def _continues(answer: HTTPResponse, start: int) -> bool:
    """Whether the answer begins at the requested byte; some servers send the whole file."""
    return start == 0 or (
        answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    )


def _append(answer: HTTPResponse, sink: BinaryIO, size: int, progress: Progress) -> str:
    """Append the answer to the sink, up to a size; returns why it ended."""
    while (missing_bytes := size - sink.tell()) > 0:
        try:
            chunk = answer.read1(min(_CHUNK_BYTES, missing_bytes))
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__
        if not chunk:
            return "the connection was closed"
        sink.write(chunk)
        progress.add(len(chunk))
    return ""
