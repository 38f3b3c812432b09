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
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path, PurePath
from typing import IO, Any

from drivetrain.errors import CheckpointError
from drivetrain.system.files import blame_storage, parse_json, parse_row, to_json, write_atomically

JOB_FILE, PLAN_FILE, HARDWARE_FILE = "job.yaml", "plan.json", "hardware.json"
STATE_FILE, METRICS_FILE, RESULT_FILE = "state.json", "metrics.jsonl", "result.json"
TELEMETRY_FILE, EVENTS_FILE, PROGRESS_FILE = "telemetry.jsonl", "events.jsonl", "progress.json"
INPUTS_FILE, OBJECTS_FILE = "inputs.json", "objects.json"
"""Digests of the user's code and data with the preprocessing, and of the objects that a Python program passed in."""
BATCH_SIZE_FILE = "batch_size.json"
"""Measurements for `batch_size: auto`."""
EXTENSION_FILE = "extension.json"
LEADER_FILE, LOCK_FILE = "leader.json", ".lock"
"""Answers of the leader to another process; the lock of the process that trains in it."""
EXPLANATION_FILE = "explanation.json"
"""Explanation of the model: importance of the columns, or heat maps."""
REPORT_FILES = REPORT_PAGE, REPORT_TEXT, REPORT_DATA = "report.html", "report.md", "report.json"
SWEEP_FILE = "sweep.yaml"
"""The spec of a sweep, in the folder that holds its trials."""
CHECKPOINTS, MODEL, RANKS = "checkpoints", "model", "ranks"
"""Folders: checkpoints, the trained model, and the run folders of the processes that do not lead."""
RECORDS = (
    *(PLAN_FILE, BATCH_SIZE_FILE, INPUTS_FILE, OBJECTS_FILE),
    *(METRICS_FILE, EVENTS_FILE, TELEMETRY_FILE, PROGRESS_FILE, "tensorboard"),
)
"""Files that determine the bits of a run, and its curves so far: a run that extends it gets copies."""
FILES_BEFORE_TRAINING = ("job", JOB_FILE, HARDWARE_FILE, *RECORDS, STATE_FILE, RANKS, *REPORT_FILES)
"""Files that a run can have before its first checkpoint, in the order in which they are removed: as long as the state is
there, the next start sees that nothing was trained.
"""

MISSING = "missing"
"""Problem of a file that does not exist."""
LINKS_POSSIBLE = "regular files and folders: in a run folder no link is followed"
LINKS_ACTION = "if you made it, put the file itself there or name the folder it leads to; otherwise do not use this run"
MAX_FILE_BYTES = 256 << 20
"""Bytes of a file that is read as a whole; one with holes can say that it is larger than any memory."""
MAX_LINE_LENGTH = 16 << 20
"""Characters or bytes of a line."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RunFiles:
    """Reads and writes the files of one run folder by their names in it, such as `model/config.json`."""

    def __init__(self, run: Path, below: str = "") -> None:
        """
        Args:
            below: a folder in it, where the names start; empty for the run folder itself.
        """
        self.run = run
        self.below = below
        self.path = run / below

    def open(self, name: str, mode: str = "r", *, errors: str | None = None) -> IO[Any]:
        """Open a file as `Path.open` does; text is UTF-8.

        Raises:
            OSError: if it cannot be opened; ELOOP for a link, EINVAL for anything but a regular file.
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
        """Return the open folder that a file lies in, and the file's name in it."""
        *folders, file = PurePath(self.below, name).parts
        if os.path.isabs(name) or ".." in (*folders, file):
            raise OSError(errno.EINVAL, "it does not lie in the run folder", str(self.path / name))
        handle = os.open(self.run, _FOLDER_FLAGS)
        # One folder at a time: a link that somebody puts in place meanwhile is met, too.
        for folder in folders:
            try:
                inner = os.open(folder, _FOLDER_FLAGS, dir_fd=handle)
            finally:
                os.close(handle)
            handle = inner
        return handle, file

    def make_folder(self) -> None:
        """Create the folder below the run folder, if needed; raises StorageError if that fails, or for a link."""
        with blame_storage(self.path):
            for name in accumulate(PurePath(self.below).parts, os.path.join):
                parent, folder = RunFiles(self.run)._open_parent(name)
                try:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=parent)
                    os.close(os.open(folder, _FOLDER_FLAGS, dir_fd=parent))
                finally:
                    os.close(parent)

    def is_file(self, name: str) -> bool:
        """Return whether a regular file of this name can be opened."""
        return self.read_modified(name) is not None

    def read_modified(self, name: str) -> float | None:
        """Read when a file was last written, in seconds since 1970; None if there is no such file."""
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
        """Read the content of a file.

        Raises:
            OSError: as `open`; EFBIG if it has more than MAX_FILE_BYTES bytes.
        """
        with self.open(name, "rb") as file:
            return bytes(_read_limited(file))

    def read_text(self, name: str, *, errors: str | None = None) -> str:
        """Read the text of a file.

        Raises:
            OSError: as `read_bytes`.
            UnicodeDecodeError: if it is not UTF-8.
        """
        with self.open(name, errors=errors) as file:
            return str(_read_limited(file))

    def read_json(self, name: str) -> Any:
        """Read the data of a JSON file; None if it is missing, invalid, or no regular file."""
        try:
            return parse_json(self.read_text(name))
        except (OSError, ValueError):
            return None

    def read_object(self, name: str) -> dict[str, Any]:
        """Read the object of a JSON file; empty if there is none."""
        return self.read_checked_object(name)[0]

    def read_checked_object(self, name: str) -> tuple[dict[str, Any], str]:
        """Read the object of a JSON file, empty if there is none, and describe the problem of the file, if it has one."""
        try:
            text = self.read_bytes(name)
        except OSError as error:
            return {}, describe_unread(error)
        row = parse_row(text)
        return ({}, "cut or damaged" if text.strip() else "empty") if row is None else (row, "")

    def read_rows(
        self, name: str, report: Callable[[str, str], None] = lambda problem, consequence: None
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of a JSON-lines file, one at a time; a row truncated by a crash is skipped.

        Args:
            report: called at the end with what is wrong with the file, if anything is, and what it leads to; the
                latter is empty if there are no rows.
        """
        bad_lines: list[int] = []
        count = 0
        try:
            with self.open(name, errors="replace") as file:
                for count, line in enumerate(read_lines(file), start=1):
                    row = parse_row(line)
                    if row is None:
                        bad_lines.append(count)
                    else:
                        yield row
        except OSError as error:
            report(describe_unread(error), "")
            return
        if not count:
            report("empty", "")
        elif bad_lines == [count]:
            report(f"the last line ({count}) is incomplete", "all lines before it are shown")
        elif bad_lines:
            problem = f"{len(bad_lines)} of {count} lines cannot be read, the first is line {bad_lines[0]}"
            report(problem, "they are skipped")

    def append(self, name: str, text: str) -> None:
        """Add a text to the end of a file, which is made if it is missing; raises OSError if it cannot be written."""
        with self.open(name, "a") as file:
            file.write(text)

    def write_text(self, name: str, text: str) -> None:
        """Write a file so that a crash leaves the old or the new content; a link of its name is replaced.

        Raises:
            StorageError: if it cannot be written.
        """
        write_atomically(lambda: self._open_parent(name), self.path / name, text)

    def write_json(self, name: str, data: object) -> None:
        """Write indented JSON as `write_text` does; NaN becomes null."""
        self.write_text(name, to_json(data))


def describe_unread(error: OSError) -> str:
    """Describe the problem of a file that cannot be opened or read."""
    return MISSING if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def check_is_run(run: Path) -> None:
    """Check that a folder holds a file of a run, be it damaged.

    Raises:
        CheckpointError: if there is no such folder, or no such file in it.
    """
    names = (JOB_FILE, HARDWARE_FILE, STATE_FILE, RESULT_FILE, *RECORDS)
    if not any(map(RunFiles(run).is_file, names)):
        problem = "it contains no file of a run" if run.is_dir() else "there is no such folder"
        action = "use a folder that `drivetrain train` created, below runs/"
        raise CheckpointError(f"{run}: {problem}", f"a run folder contains {', '.join(names)}", action)


def damaged_error(file: Path, problem: str) -> CheckpointError:
    """Return the error about a file of a run that is needed and cannot be read."""
    return CheckpointError(f"{file}: {problem}", "the file as the run wrote it", "restore it, or use another run")


def list_checkpoints(folder: Path, kind: str = "step") -> list[Path]:
    """List the checkpoint folders of a kind, `step` or `best`, oldest first."""
    folders = [p for p in folder.glob(f"{kind}-*") if p.name.removeprefix(f"{kind}-").isdecimal()]
    return sorted(folders, key=parse_suffix)


def parse_suffix(path: Path | str) -> int:
    """Parse the number at the end of a folder's name: the step of a checkpoint, or the number of a run."""
    return int(str(path).rpartition("-")[2])


def _read_limited(file: IO[Any]) -> Any:
    """Read the content of an open file; raises OSError EFBIG if it has more than MAX_FILE_BYTES bytes."""
    size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.name)
    # A read allocates as much as it asks for; who needs more than the file had reads it again.
    return file.read(size + 1)


def read_lines(file: IO[Any]) -> Iterator[Any]:
    """Yield the lines of an open file, one at a time.

    Raises:
        OSError: EFBIG for a line of MAX_LINE_LENGTH characters or bytes, such as the zeros of a hole.
    """
    while line := file.readline(MAX_LINE_LENGTH):
        if len(line) == MAX_LINE_LENGTH:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.name)
        yield line


class JsonLinesTail:
    """The rows that a JSON-lines file gained since the last read."""

    def __init__(self, files: RunFiles, name: str) -> None:
        self.files, self.name, self.offset, self.inode = files, name, 0, -1

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Read new complete rows, and whether the file was rewritten, so that earlier rows no longer count."""
        rows: list[dict[str, Any]] = []
        is_rewritten = False
        try:
            with self.files.open(self.name, "rb") as file:
                status = os.fstat(file.fileno())
                is_rewritten = self.inode not in (-1, status.st_ino) or status.st_size < self.offset
                self.offset, self.inode = 0 if is_rewritten else self.offset, status.st_ino
                file.seek(self.offset)
                for line in read_lines(file):
                    row = parse_row(line)
                    if line.endswith(b"\n"):
                        self.offset += len(line)
                        if row is not None:
                            rows.append(row)
        except OSError:
            pass  # the rows so far count
        return rows, is_rewritten


def refuse_links(run: Path) -> None:
    """Check that a run folder and all below it are folders and regular files; raises CheckpointError if not."""
    entry = next(find_links(run), None)
    if entry:
        raise CheckpointError(f"{entry}, which could lead out of the run folder", LINKS_POSSIBLE, LINKS_ACTION)


def find_links(run: Path) -> Iterator[str]:
    """Find entries of a run folder that are neither a folder nor a regular file: the path and the kind of each."""
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
