"""Atomic file writes (temporary file, fsync, rename), and tolerant reads."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from drivetrain.errors import StorageError


def is_private(folder: Path) -> bool:
    """Return whether a folder is this user's and nobody else can write to it; raises OSError if it is missing."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def is_below(folder: Path, name: object) -> bool:
    """Return whether a name that a file gives leads to a place below a folder; links are not looked at."""
    if not isinstance(name, str) or not name or "\0" in name or os.pardir in name.split(os.sep):
        return False
    return not os.path.isabs(name) or os.path.normpath(name).startswith(os.path.join(os.path.abspath(folder), ""))


USER_RWX = 0o700
"""The mode of a folder that only its owner may enter: runs quote samples, and repeat paths and addresses."""


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder with its parents, if they do not exist; raises StorageError if that fails.

    Only the folder itself gets `mode`, less the bits of the process's umask.
    """
    with blame_storage(path):
        path.mkdir(mode, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part; raises StorageError if that fails."""
    write_atomically(lambda: (os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY), path.name), path, text)


def write_atomically(open_parent: Callable[[], tuple[int, str]], path: Path, text: str) -> None:
    """Write a text to a new file in a folder, and rename it to the file's name; raises StorageError if that fails.

    Args:
        open_parent: opens the folder that the file lies in; returns its descriptor, and the file's name there.
        path: the file, for the error message.
    """
    try:
        folder, name = open_parent()
    except OSError as error:
        raise storage_error(path, error) from None
    temporary = f".{name}.{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        # It must be new: a link of this name would lead elsewhere.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise storage_error(path, error) from None
    finally:
        os.close(folder)


def write_json(path: Path, data: object) -> None:
    """Write indented JSON atomically; NaN becomes null."""
    write_text(path, to_json(data))


def to_json(data: object) -> str:
    """Write indented JSON with a line break at its end; NaN becomes null."""
    text = json.dumps(_replace_nan(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes of file names that are not UTF-8 become escapes of JSON, which read back as they were.
    return text.encode("utf-8", "backslashreplace").decode()


def _replace_nan(value: object) -> object:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _replace_nan(member) for key, member in value.items()}
    return [_replace_nan(member) for member in value] if isinstance(value, list | tuple) else value


def parse_json(text: str | bytes, kind: type[dict[str, Any]] | type[list[Any]] | None = None) -> Any:
    """Parse the content of a JSON file, which a stranger may have written.

    Args:
        kind: the type of the content; None if the caller checks it.

    Raises:
        ValueError: with the problem: the syntax (a JSONDecodeError), the encoding or a value.
    """
    try:
        data = json.loads(text, object_pairs_hook=_build_object, parse_float=_parse_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _BadJson):
        raise
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise ValueError("it has a number of too many digits") from None
    if kind is not None and not isinstance(data, kind):
        raise ValueError(f"it holds {_JSON_KINDS.get(type(data), 'a value')}, not {_JSON_KINDS[kind]}")
    return data


_JSON_KINDS: dict[type, str] = {dict: "an object", list: "a list"}


class _BadJson(ValueError):
    """A value that JSON allows, and that would be read as another one."""


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    for key, value in pairs:
        if data[key] != value:
            raise _BadJson(f'it has the key "{key[:40]}" twice, with different values')
    return data


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _BadJson(f"it has a number that is too large: {text[:40]}")
    return number


def parse_row(line: str | bytes) -> dict[str, object] | None:
    """Parse a JSON object, such as a line of a JSON-lines file; None if it is incomplete, or no object."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_json(path: Path) -> Any:
    """Read the data of a JSON file; None if it is missing or invalid."""
    try:
        with open_file(path) as file:
            return parse_json(file.read())
    except (OSError, ValueError):
        return None


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power loss."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def reserve_space(file: IO[bytes], size: int, folder: Path) -> None:
    """Allocate disk space for a file that will be memory-mapped, where a full disk kills the process; else StorageError."""
    with blame_storage(folder):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS
            _write_zeros(file, size)


def _write_zeros(file: IO[bytes], size: int) -> None:
    block = bytes(1 << 20)
    file.seek(0)
    for start in range(0, size, len(block)):
        file.write(block[: size - start])
    file.flush()


TAKE_FILE = "write what it gives into a file, and name that file"
"""Advice about a pipe, a socket or a device."""
_SPECIAL_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def describe_special_file(path: Path) -> str:
    """Describe a pipe, a socket or a device, such as "is a named pipe, not a file"; empty for all else."""
    try:
        kind = _SPECIAL_FILES.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return ""
    return f"is {kind}, not a file" if kind else ""


def open_file(path: Path, flags: int = 0) -> io.BufferedReader:
    """Open a file that a user names, for reading, with more `flags` of `os.open`.

    Raises:
        OSError: if it cannot be opened; EINVAL for a pipe, a socket or a device, where reading could wait for ever.
    """
    kind = describe_special_file(path)
    if kind:
        raise OSError(errno.EINVAL, kind, str(path))
    # A pipe that takes the file's place in the meantime does not block either.
    return open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags | os.O_NONBLOCK))


def hash_file(path: Path) -> str:
    """Compute the hex digest of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def blame_storage(path: Path) -> Iterator[None]:
    """Raise StorageError in place of an OSError of the block, which writes to a path."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from None


def check_utf8(path: Path) -> None:
    """Raise StorageError for a path with bytes that are not UTF-8: libraries neither read nor write weights there."""
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        raise StorageError(
            f"{path}: the name has bytes that are not UTF-8",
            "a name in UTF-8, without which weights cannot be read or written",
            "rename it, or choose another name, such as with --runs or --output",
        )


def storage_error(path: Path, error: OSError, option: str = "--runs DIR") -> StorageError:
    """Return the StorageError for a failed write; it names the owner of a folder that belongs to another user.

    Args:
        path: file or folder that cannot be written.
        error: the reason.
        option: option of the command that names another place for it.
    """
    # In our containers runs/ is a mount, and no other folder can be used.
    elsewhere = "" if "DRIVETRAIN_IMAGE" in os.environ else f", or choose another folder with {option}"
    if error.errno in (errno.EACCES, errno.EPERM):
        existing = next(p for p in (path, *path.parents) if os.path.exists(p))
        owner = existing.stat()
        if owner.st_uid == os.getuid():
            return StorageError(
                f"{path}: {error.strerror}: {existing} is yours, but closed for writing",
                "a folder that this user can write to",
                f"chmod u+rwx {shlex.quote(str(existing))}{elsewhere}",
            )
        return StorageError(
            f"{path}: {error.strerror}: it belongs to uid {owner.st_uid}, but this process runs as uid {os.getuid()}",
            "a folder that this user can write to",
            f"run as its owner (compose: DRIVETRAIN_UID={owner.st_uid} DRIVETRAIN_GID={owner.st_gid} docker compose up "
            f"trainer; or once `make setup`){elsewhere}",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"{path}: {error.strerror}",
            "a folder on a file system that can be written",
            f"mount it for writing{elsewhere}"
            if elsewhere
            else "runs/, or a folder in it: a container writes there, and where --output is",
        )
    if error.errno == errno.EIO:
        return StorageError(
            f"{path}: {error.strerror}",
            "a disk that works: `dmesg` names one that fails",
            f"replace the disk{elsewhere}",
        )
    return StorageError(
        f"{path}: {error.strerror or error}",
        "a folder with free space that this user can write to",
        f"free disk space{elsewhere}",
    )
