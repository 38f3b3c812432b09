"""Decoded: the pixels of image files in one mapped file, so that each is decoded once for all epochs and all runs.

    <key>.u8    a row of 8-bit pixels for each image, then a mark for each row

The key holds paths, sizes, times and inodes of the files, the geometry and the versions of what decodes. A mark is written
after its row and holds the row's checksum, so a row that a kill or a power cut left unfinished is never believed; two
runs at once write the same bytes. A file is locked while it is in use; the ones longest unused give way to new ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from runtime.data.fingerprint import stamp
from runtime.data.images.image_files import Files
from runtime.data.stateless_random import Ids
from runtime.errors import StorageError
from runtime.system.files import reserve, storage_error
from runtime.system.version import VERSION

MARK = 8
"""Bytes of a mark."""
WRITTEN = 1 << 32
"""Part of every mark, so that none is 0, which is what a new file holds."""


@dataclass
class Decoded:
    """Image files whose pixels are kept once they were decoded; gives what `Files` gives."""

    files: Files
    path: Path
    known: npt.NDArray[np.bool_] = field(init=False)
    """Rows whose mark this process has checked."""
    mapped: npt.NDArray[np.uint8] | None = None
    """The whole file; None until it is needed, and in a new process."""

    def __post_init__(self) -> None:
        self.known = np.zeros(len(self.files), np.bool_)

    def __len__(self) -> int:
        return len(self.files)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"mapped": None}

    def title(self, row: int) -> str:
        """The path of an image."""
        return self.files.title(row)

    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""
        return self.files.channels * self.files.size**2

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8; those not kept yet are decoded.

        Raises:
            DataError: if a file changed or went away since it was checked.
            StorageError: if the mapped file cannot be opened.
        """
        pixels, marks = self._parts()
        unknown = np.unique(rows[~self.known[rows]])
        missing = np.array([row for row in unknown.tolist() if marks[row] != _mark(pixels[row])], np.int64)
        if len(missing):
            found = self.files.gather(missing).numpy().reshape(len(missing), -1)
            for row, image in zip(missing.tolist(), found, strict=True):
                pixels[row] = image
                marks[row] = _mark(image)
        self.known[unknown] = True
        shape = (len(rows), self.files.channels, self.files.size, self.files.size)
        return torch.from_numpy(pixels[rows].reshape(shape))

    def open(self) -> None:
        """Map the file; one that is not there is made, with its room on the disk.

        Raises:
            StorageError: if that cannot be done.
        """
        length = len(self.files) * (self.row_bytes + MARK)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b") as file:
                # The map keeps the file open, and with it the lock.
                fcntl.flock(file, fcntl.LOCK_SH)
                os.utime(self.path)
                if os.fstat(file.fileno()).st_size < length:
                    reserve(file, length, self.path)
                self.mapped = np.frombuffer(mmap.mmap(file.fileno(), length), np.uint8)
        except StorageError:
            self.path.unlink(missing_ok=True)
            raise
        except OSError as error:
            raise storage_error(self.path, error) from None

    def _parts(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """Pixels (rows, bytes) and marks (rows,) of the mapped file."""
        if self.mapped is None:
            self.open()
        assert self.mapped is not None
        end = len(self.files) * self.row_bytes
        return self.mapped[:end].reshape(len(self.files), -1), self.mapped[end:].view(np.uint64)


def kept(files: Files, folder: Path, room: int) -> Decoded:
    """The files with their pixels kept in a folder of the cache, of which others give way if room is short.

    Args:
        files: fitted to their size and channels.
        folder: of all decoded images.
        room: bytes that these and all others may take.

    Raises:
        StorageError: if the file cannot be made.
    """
    made = Decoded(files, folder / f"{_key(files)}.u8")
    _make_room(made.path, room - len(files) * (made.row_bytes + MARK))
    made.open()
    return made


def _key(files: Files) -> str:
    parts = [VERSION, PIL.__version__, files.size, files.channels, files.fit]
    parts += [(path, stamp(path)) for path in map(os.path.abspath, map(files.title, range(len(files))))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _make_room(path: Path, room: int) -> None:
    """Remove other files, the longest unused first, until those that stay take no more than `room`."""
    others = []
    for other in path.parent.glob("*.u8"):
        with contextlib.suppress(OSError):
            others.append((other.stat().st_mtime_ns, other.stat().st_size, other))
    taken = sum(size for _, size, other in others if other != path)
    for _, size, other in sorted(others):
        if taken > room and other != path and _removed(other):
            taken -= size


def _removed(path: Path) -> bool:
    """Remove a file that no process uses."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError:
        return False
    return True


def _mark(row: npt.NDArray[np.uint8]) -> np.uint64:
    return np.uint64(WRITTEN | zlib.crc32(np.ascontiguousarray(row).data))
