"""Caches decoded images in one memory-mapped file, so that each image is decoded once for all epochs and runs.

    <key>.u8    a row of 8-bit pixels per image, then a mark per row

The key covers paths, sizes, times and inodes of the files, the image size and how it is resized, and the versions of the decoder. A
mark is written after its row and holds the row's checksum, so a row that was interrupted by a kill or power loss is
never used; two runs at once write the same bytes. A file is locked while in use; the least recently used files are
removed for new ones.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from drivetrain.data.images.image_files import Files
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import StorageError
from drivetrain.system import file_lock
from drivetrain.system.disk_cache import DiskCache
from drivetrain.system.files import make_folder, reserve_space, storage_error
from drivetrain.system.version import VERSION

MARK_BYTES = 8
"""Bytes of a mark."""
WRITTEN = 1 << 32
"""Bit that is set in every mark, so that no mark is 0, the content of a new file."""


class DecodedFiles(DiskCache):
    """All cache files."""

    suffix: ClassVar[str] = ".u8"


@dataclass
class Decoded:
    """Image files whose decoded pixels are cached; has the methods of `Files`."""

    files: Files
    path: Path
    verified: npt.NDArray[np.bool_] = field(init=False)
    """Rows whose mark this process has verified."""
    mapped: npt.NDArray[np.uint8] | None = None
    """The whole file; None until first used, and in a new process."""

    def __post_init__(self) -> None:
        self.verified = np.zeros(len(self.files), np.bool_)

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

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return len(self.files) * (self.row_bytes + MARK_BYTES)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8; missing ones are decoded and cached.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
            StorageError: if the mapped file cannot be opened.
        """
        pixels, marks = self._parts()
        unverified = np.unique(rows[~self.verified[rows]])
        missing = np.array([row for row in unverified.tolist() if marks[row] != _mark(pixels[row])], np.int64)
        if len(missing):
            decoded = self.files.gather(missing).numpy().reshape(len(missing), -1)
            for row, image in zip(missing.tolist(), decoded, strict=True):
                pixels[row] = image
                marks[row] = _mark(image)
        self.verified[unverified] = True
        shape = (len(rows), self.files.channels, self.files.size, self.files.size)
        return torch.from_numpy(pixels[rows].reshape(shape))

    def open(self) -> None:
        """Map the file; create it, with its disk space allocated, if it does not exist.

        Raises:
            StorageError: if that fails.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(file_lock.open_locked(self.path, shared=True), "r+b") as file:
                # The mapping keeps the file open, and so keeps the lock.
                os.utime(self.path)
                if os.fstat(file.fileno()).st_size < self.length:
                    reserve_space(file, self.length, self.path)
                self.mapped = np.frombuffer(mmap.mmap(file.fileno(), self.length), np.uint8)
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


def keep(files: Files, folder: Path, room: int) -> Decoded:
    """The files with their pixels cached in a folder; other cache files are removed if space is short.

    Args:
        files: with size and channels set.
        room: bytes that all cache files together may use.

    Raises:
        StorageError: if the file cannot be created.
    """
    make_folder(folder)
    cache, key = DecodedFiles(folder, room), _key(files)
    decoded = Decoded(files, cache.path(key))
    # Without enough space it is made all the same: what fits is decided by the plan.
    cache.make_room(key, decoded.length)
    decoded.open()
    return decoded


def _key(files: Files) -> str:
    """The name of the cache file: a hash of all that the decoded pixels depend on."""
    parts: list[object] = [VERSION, PIL.__version__, files.size, files.channels, astuple(files.resize)]
    parts += files.stamps()
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _mark(row: npt.NDArray[np.uint8]) -> np.uint64:
    """The mark of a row: its checksum, with the bit WRITTEN."""
    return np.uint64(WRITTEN | zlib.crc32(np.ascontiguousarray(row).data))
