"""Downloads files of the hub: resumes an interrupted download, compares the hash, and only then names a file."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.pretrained.hub_cache import PART, HubFile, Repository, blame_cache
from drivetrain.pretrained.hub_connection import Connection
from drivetrain.pretrained.hub_error import HubError
from drivetrain.system.files import sync_file, sync_folder

PROGRESS_SECONDS = 5.0
"""Time between two lines of progress."""
_SPARE_BYTES = 64 << 20
"""Space that must stay free on the disk."""


def download(connection: Connection, repository: Repository, commit: str, files: Sequence[HubFile]) -> None:
    """Download files into the cache, each under another name until it is complete and compared with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        StorageError: if the cache has no space for them, or cannot be written.
    """
    parts = {file: repository.blob(file).with_name(f"{file.hash}{PART}") for file in files}
    missing_bytes = sum(file.size - (part.stat().st_size if part.exists() else 0) for file, part in parts.items())
    free = shutil.disk_usage(repository.root).free
    if missing_bytes + _SPARE_BYTES > free:
        raise StorageError(
            f"{repository.root}: the download needs {missing_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            "a folder with free space",
            "free some space, or set HF_HOME to another folder",
        )
    connection = replace(connection, count=_report_progress(missing_bytes, connection.say))
    for file, part in parts.items():
        blob = repository.blob(file)
        if file.is_in(blob):  # two files can have one content
            continue
        with blame_cache(blob):
            receive(connection, commit, file, part)
            sync_file(part)
            part.replace(blob)
            sync_folder(blob.parent)


def _report_progress(total: int, say: Callable[[str], None]) -> Callable[[int], None]:
    """A function that takes numbers of bytes, of `total`, and says amount, rate and remaining time every few seconds."""
    begun_at = printed_at = time.monotonic()
    done = 0

    def count(received: int) -> None:
        nonlocal done, printed_at
        done += received
        now = time.monotonic()
        if now - printed_at < PROGRESS_SECONDS or done >= total:
            return
        printed_at = now
        rate = max(1.0, done / (now - begun_at))
        seconds_left = (total - done) / rate
        time_left = f"{seconds_left:,.0f} s" if seconds_left < 90 else f"{seconds_left / 60:,.0f} min"
        say(f"hub: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {rate / 1e6:,.2f} MB/s, about {time_left} left")

    return count


def receive(connection: Connection, commit: str, file: HubFile, part: Path) -> None:
    """Download a file, resumed where it was cut, and compare it with its hash.

    Raises:
        HubError: if the hub refuses, the link stays cut, or the content is another one.
        OSError: if it cannot be written.
    """
    for is_last in (False, True):
        with part.open("ab") as sink:
            if sink.tell() < file.size:
                connection.receive(connection.make_file_url(commit, file.name), sink, file.size)
        if file.is_in(part):
            return
        part.unlink()
        connection.count(-file.size)
        if is_last:
            raise HubError(
                f"{file.name} has another hash than the hub says, in two downloads",
                f"a file with {'SHA-256' if len(file.hash) == 64 else 'the git hash'} {file.hash}",
                "try again later; if it stays so, a proxy or a mirror (HF_ENDPOINT) changes files",
            )
        connection.say(f"hub: {file.name} has another hash than the hub says; downloading it again")


def read_range(connection: Connection, commit: str, file: HubFile, start: int, size: int) -> bytes | None:
    """Read `size` bytes of a file from `start`; None if the server sends the whole file instead.

    Raises:
        HubError: if the hub refuses, or the link stays cut.
    """
    sink = io.BytesIO()
    part = range(start, start + size)
    headers = connection.receive(connection.make_file_url(commit, file.name), sink, size, part)
    return None if headers is None else sink.getvalue()
