"""The files of a run folder: each is opened beneath it, no symbolic link is followed, and only regular files are opened.

A run folder can come from a stranger, and the code of a job can write into it from a container. A link in it would make
whoever reads or continues the run open a file of theirs in its place: a key that a tracker uploads, a script that the
next shell runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path, PurePath
from typing import IO, Any

from drivetrain.errors import CheckpointError
from drivetrain.system.files import parse_json, parse_row, storage_error, to_json, write_beside

JOB_FILE, PLAN_FILE, HARDWARE_FILE = "job.yaml", "plan.json", "hardware.json"
STATE_FILE, METRICS_FILE, RESULT_FILE = "state.json", "metrics.jsonl", "result.json"
RUN_LENGTH_FILE = "run_length.json"
"""What was measured for `train.within`, and the epochs, steps and seconds of training that follow."""

POSSIBLE = "regular files and folders: in a run folder no link is followed"
ACTION = "if you made it, put the file itself there or name the folder it leads to; otherwise do not use this run"
MAX_FILE_BYTES = 256 << 20
"""Bytes of a file that is read as a whole; one with holes can say that it is larger than any memory."""
MAX_LINE_LENGTH = 16 << 20
"""Characters or bytes of a line."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RunFiles:
    """Reads and writes the files of one run folder by their names in it, such as `model/config.json`."""

    def __init__(self, run: Path, below: str = "") -> None:
        """
        Args:
            run: the run folder.
            below: a folder in it, where the names start; empty for the run folder itself.
        """
        self.run = run
        self.below = below
        self.path = run / below

    def open(self, name: str, mode: str = "r", *, errors: str | None = None) -> IO[Any]:
        """Open a file as `Path.open` does; text is UTF-8.

        Raises:
            OSError: if it cannot be opened; ELOOP for a link, EINVAL for what is no regular file.
        """
        encoding = None if "b" in mode else "utf-8"
        return open(
            name, mode, encoding=encoding, errors=errors, opener=lambda name, flags: self.open_handle(name, flags)
        )

    def open_handle(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open a file as `os.open` does.

        Raises:
            OSError: as `open`.
        """
        folder, file = self._open_parent(name)
        try:
            # A pipe would block until somebody opens its other end; for a regular file O_NONBLOCK means nothing.
            handle = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no regular file", str(self.path / name))
        return handle

    def _open_parent(self, name: str) -> tuple[int, str]:
        """The open folder that a file lies in, and the file's name in it."""
        *folders, file = PurePath(self.below, name).parts
        if os.path.isabs(name) or ".." in (*folders, file):
            raise OSError(errno.EINVAL, "it does not lie in the run folder", str(self.path / name))
        handle = os.open(self.run, _FOLDER)
        # One folder at a time: a link that somebody puts in place meanwhile is met, too.
        for folder in folders:
            try:
                inner = os.open(folder, _FOLDER, dir_fd=handle)
            finally:
                os.close(handle)
            handle = inner
        return handle, file

    def make_folder(self) -> None:
        """Create the folder below the run folder, if it does not exist.

        Raises:
            StorageError: if that fails, or a link is in its place.
        """
        try:
            for name in accumulate(PurePath(self.below).parts, os.path.join):
                parent, folder = RunFiles(self.run)._open_parent(name)
                try:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=parent)
                    os.close(os.open(folder, _FOLDER, dir_fd=parent))
                finally:
                    os.close(parent)
        except OSError as error:
            raise storage_error(self.path, error) from None

    def is_file(self, name: str) -> bool:
        """Whether a regular file of this name can be opened."""
        return self.modified(name) is not None

    def modified(self, name: str) -> float | None:
        """When a file was last written, in seconds since 1970; None if there is no such file."""
        try:
            folder, file = self._open_parent(name)
        except OSError:
            return None
        try:
            status = os.stat(file, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        finally:
            os.close(folder)
        return status.st_mtime if stat.S_ISREG(status.st_mode) else None

    def read_bytes(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            OSError: as `open`; EFBIG if it has more than MAX_FILE_BYTES bytes.
        """
        with self.open(name, "rb") as file:
            return bytes(_whole(file))

    def read_text(self, name: str, *, errors: str | None = None) -> str:
        """The text of a file.

        Raises:
            OSError: as `read_bytes`.
            UnicodeDecodeError: if it is not UTF-8.
        """
        with self.open(name, errors=errors) as file:
            return str(_whole(file))

    def read_json(self, name: str) -> Any:
        """The data of a JSON file; None if it is missing, invalid, or no regular file."""
        try:
            return parse_json(self.read_text(name))
        except (OSError, ValueError):
            return None

    def read_object(self, name: str) -> dict[str, Any]:
        """The object of a JSON file; empty if there is none."""
        data = self.read_json(name)
        return data if isinstance(data, dict) else {}

    def read_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a JSON-lines file; a row truncated by a crash is skipped."""
        try:
            with self.open(name, errors="replace") as file:
                yield from (row for line in lines(file) if (row := parse_row(line)) is not None)
        except OSError:
            return

    def append(self, name: str, text: str) -> None:
        """Add a text to the end of a file, which is made if it is missing.

        Raises:
            OSError: if it cannot be written.
        """
        with self.open(name, "a") as file:
            file.write(text)

    def write_text(self, name: str, text: str) -> None:
        """Write a file so that a crash leaves the old or the new content; a link of its name is replaced.

        Raises:
            StorageError: if it cannot be written.
        """
        write_beside(lambda: self._open_parent(name), self.path / name, text)

    def write_json(self, name: str, data: object) -> None:
        """Write indented JSON as `write_text` does; NaN becomes null."""
        self.write_text(name, to_json(data))


def _whole(file: IO[Any]) -> Any:
    """The content of an open file.

    Raises:
        OSError: EFBIG if it has more than MAX_FILE_BYTES bytes.
    """
    if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.name)
    return file.read(MAX_FILE_BYTES)  # it may have grown


def lines(file: IO[Any]) -> Iterator[Any]:
    """The lines of an open file, one at a time.

    Raises:
        OSError: EFBIG for a line of MAX_LINE_LENGTH characters or bytes, such as the zeros of a hole.
    """
    while line := file.readline(MAX_LINE_LENGTH):
        if len(line) == MAX_LINE_LENGTH:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.name)
        yield line


def refuse_links(run: Path) -> None:
    """Check that a run folder and all below it are folders and regular files.

    Raises:
        CheckpointError: if not.
    """
    if entry := next(links(run), None):
        raise CheckpointError(f"{entry}, which could lead out of the run folder", POSSIBLE, ACTION)


def links(run: Path) -> Iterator[str]:
    """What is neither a folder nor a regular file in a run folder: its path, and what it is instead."""
    if run.is_symlink():
        yield f"{run} is a symbolic link"
        return
    folders = [run]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        yield f"{entry.path} is a symbolic link"
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif not entry.is_file(follow_symlinks=False):
                        yield f"{entry.path} is a pipe, a socket or a device"
        except OSError:  # it is missing, or closed for us: who opens it reports that
            continue
