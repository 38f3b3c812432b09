"""Image files on disk or in a column of a table, decoded on use, or once for all epochs and runs.

The cache is one memory-mapped file for each selection of files:

    <key>.u8    a row of 8-bit pixels per image, then a mark per row

The key covers paths, sizes, times and inodes of the files, image size and resizing, and the versions of the decoder. A
mark is written after its row and holds the row's checksum, so a row interrupted by a kill or power loss is never used;
two runs at once write the same bytes. A file is locked while in use; the least recently used files are removed to make
room for new ones.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from drivetrain.data.dataset import Dataset
from drivetrain.data.fingerprint import stamp
from drivetrain.data.formats import csv_dialect
from drivetrain.data.source import BadSample, Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError, StorageError
from drivetrain.hardware.disk_space import DECODED_FOLDER
from drivetrain.hardware.facts import Storage
from drivetrain.job.formatting import readable
from drivetrain.system import file_lock
from drivetrain.system.files import make_folder, reserve_space, storage_error
from drivetrain.system.version import VERSION
from drivetrain.tasks.image import decode
from drivetrain.tasks.image.resize import DEFAULT_RESIZE, Resize

if TYPE_CHECKING:
    from drivetrain.tasks.image.image_column import ImageCells
    from drivetrain.tasks.image.npz_images import ImageArrays


@dataclass(frozen=True)
class Files:
    """Image files under one folder, each decoded once as a check."""

    root: str
    names: Sequence[str]
    """Paths, relative to `root` or absolute; for images in a table, their titles."""
    short_sides: npt.NDArray[np.int64]
    """Shorter side in pixels; 0 for a file that cannot be used."""
    grey: npt.NDArray[np.bool_]
    """Whether each image is stored without color."""
    oblong: npt.NDArray[np.bool_]
    """Whether each image is not square."""
    headers: npt.NDArray[Any]
    """`decode.ImageHeader` of each file unless it is opaque with 8 bits, else None."""
    contents: npt.NDArray[np.int64]
    """Digest of the pixels of each image; 0 for a file that cannot be used."""
    size: int = 0
    """Side in pixels of the squares that `gather` returns; 0 until `fit_to` sets it."""
    channels: int = 0
    resize: Resize = DEFAULT_RESIZE
    cells: ImageCells | None = None
    """The images in a table; None if they are files."""

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int) -> str:
        """Return the path of an image, without bytes that are not UTF-8."""
        return readable(self.path(row))

    def path(self, row: int) -> str:
        """Return the path of an image, or its title if it is in a table."""
        return os.path.join(self.root, self.names[row])

    def fit_to(self, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> Files:
        """Return the same files, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def list_file_names(self) -> Sequence[str]:
        """List the paths of the images as named in their table or folder; empty for images without a file name."""
        return self.cells.file_names() if self.cells else self.names

    def compare(self, first: Ids, second: Ids) -> npt.NDArray[np.float64]:
        """Measure the mean difference of small gray versions of the images of each pair of rows."""
        small = self.fit_to(16, 1)  # gray, of 16 x 16 pixels
        try:
            one, other = (small.gather(rows).float() for rows in (first, second))
        except DataError:  # of images with unusual values
            return np.full(len(first), np.nan)
        return (one - other).abs().mean(dim=(1, 2, 3)).double().numpy()

    def gather(self, rows: Ids) -> Tensor:
        """Return the images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
        """
        sources = (self.cells.source(row) if self.cells else self.path(row) for row in rows.tolist())
        return decode_all(
            sources, map(self.title, rows.tolist()), (self.size, self.channels, self.resize), _changed_error
        )

    def stamps(self) -> list[object]:
        """Return values that change if one of the images changes, for the key of a cache."""
        if self.cells:
            return self.cells.stamps()
        return [(path, stamp(path)) for path in map(os.path.abspath, map(self.path, range(len(self))))]


def check_images(
    root: str, names: Sequence[str], cells: ImageCells | None = None
) -> tuple[Files, dict[int, BadSample]]:
    """Check each file, or each image of a table, by decoding it; returns all, and the unusable ones by row."""

    def read_header(row: int) -> decode.ImageHeader | str:
        try:
            return decode.look(cells.source(row) if cells else os.path.join(root, names[row]))
        except decode.UnreadableImage as reason:
            return str(reason)

    with decode.quiet():
        headers_or_reasons = decode.map_on_threads(read_header, range(len(names)))
    bad = {
        row: BadSample(readable(os.path.join(root, names[row])), reason)
        for row, reason in enumerate(headers_or_reasons)
        if isinstance(reason, str)
    }
    unreadable = decode.ImageHeader(0, grey=False, oblong=False)
    headers = [unreadable if isinstance(header, str) else header for header in headers_or_reasons]
    sides = np.array([header.short_side for header in headers], np.int64)
    grey = np.array([header.grey for header in headers], np.bool_)
    oblong = np.array([header.oblong for header in headers], np.bool_)
    contents = np.array([header.content for header in headers], np.int64)
    unusual_headers = np.empty(len(headers), object)
    for row, header in enumerate(headers):
        unusual_headers[row] = None if header.is_usual() else header
    return Files(root, names, sides, grey, oblong, unusual_headers, contents, cells=cells), bad


@dataclass
class Listing:
    """Images of one path, with their targets, and the rows that cannot be used."""

    root: str = ""
    """Folder of the paths in `names`."""
    names: list[str] = field(default_factory=list)
    """Path of each usable image, as written."""
    numbers: list[int] = field(default_factory=list)
    """Row of each of these in the table, from 0."""
    target: TargetColumn | None = None
    """Targets; None if they are not needed."""
    bad: list[BadSample] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    """Group names as written, if the form has a group column; empty text for no group."""
    separator: str = ""
    """Separator of the labels in a cell; empty if no cell has several."""
    cells: ImageCells | None = None
    """Images in the table; `names` are then their titles. None for files and arrays."""
    arrays: ImageArrays | None = None
    """Images of an .npz."""
    broken: dict[int, BadSample] = field(default_factory=dict)
    """Unusable images, by row."""
    notes: list[str] = field(default_factory=list)
    unsure: int = 0
    """Number of rows that have -1 or nothing in a label column."""

    def open_images(self) -> ImageArrays | Files:
        """Decode each image once as a check, and add the unusable ones to `broken`."""
        if self.arrays is not None:
            return self.arrays
        files, self.broken = check_images(self.root, self.names, self.cells)
        return files

    def find_files(self, table: Path) -> Files:
        """Look for the files that a table names, without reading them, and add the missing ones to `broken`."""
        for row, name in enumerate([] if self.cells else self.names):
            if not os.path.exists(os.path.join(self.root, name)):
                place = csv_dialect.name_row(table, self.numbers[row] + 1)
                self.broken[row] = BadSample(f"{table.name} {place}", f"{name} is not there")
        unknown = np.zeros(len(self.names), np.int64)
        rows, is_set = np.arange(len(self.names)), unknown.astype(np.bool_)
        return Files(self.root, self.names, unknown, is_set, is_set, unknown, rows, cells=self.cells)

    def check_bad(self, count: int, source: Source) -> list[str]:
        """Check the unusable images: bad rows, and those among `count` images that are broken; returns notes."""
        try:
            return source.check_bad([*self.bad, *self.broken.values()], count + len(self.bad))
        except DataError as error:
            if not self.unsure:
                raise
            # Data sets of medical images have both forms.
            action = (
                f"{self.unsure:,} rows have -1 or nothing where a label is uncertain or not mentioned: write 0 or 1 in their "
                f"place, as the data set's authors advise (often 0 for nothing); or {error.action}"
            )
            raise DataError(error.description, error.possible, action, key=error.key) from None


def decode_all(
    sources: Iterable[decode.Source],
    titles: Iterable[str],
    form: tuple[int, int, Resize],
    build_error: Callable[[str, str], DataError],
) -> Tensor:
    """Decode images as squares of a form (size, channels, resize); shape (images, channels, size, size), uint8.

    Raises:
        DataError: the error of `build_error(title, reason)` for an image that cannot be decoded.
    """

    def decode_one(image: tuple[decode.Source, str]) -> npt.NDArray[np.uint8]:
        try:
            return decode.pixels(image[0], *form)
        except decode.UnreadableImage as reason:
            raise build_error(image[1], str(reason)) from None

    with decode.quiet():
        images = decode.map_on_threads(decode_one, list(zip(sources, titles, strict=True)))
    return torch.from_numpy(np.stack(images))


def _changed_error(title: str, reason: str) -> DataError:
    """Return the error for a file that could be decoded when the run began."""
    action = "restore the file; a new run would skip it"
    return DataError(f"{title}: {reason}", "it could be decoded when the run began", action)


MARK_BYTES = 8
"""Size of a mark in bytes."""
WRITTEN = 1 << 32
"""Bit set in every mark, so that no mark is 0, as in a new file."""
SUFFIX = ".u8"
"""Ending of the cache files."""


@dataclass
class Decoded:
    """Image files whose decoded pixels are cached; has the methods of `Files`."""

    are_cached: ClassVar[bool] = True

    files: Files
    path: Path
    verified: npt.NDArray[np.bool_] = field(init=False)
    """Rows whose mark this process has verified."""
    mapped: npt.NDArray[np.uint8] | None = None
    """The whole file, mapped; None until first used, and in a new process."""

    def __post_init__(self) -> None:
        self.verified = np.zeros(len(self.files), np.bool_)

    def __len__(self) -> int:
        return len(self.files)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"mapped": None}

    def title(self, row: int) -> str:
        """Return the path of an image."""
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
        """Return the images of these rows, (len(rows), channels, size, size) uint8; decode and cache missing ones.

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
                # The mapping keeps the file open and thereby locked.
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
        """Return pixels (rows, bytes) and marks (rows,) of the mapped file."""
        if self.mapped is None:
            self.open()
        assert self.mapped is not None
        end = len(self.files) * self.row_bytes
        return self.mapped[:end].reshape(len(self.files), -1), self.mapped[end:].view(np.uint64)


def keep_decoded(dataset: Dataset, storage: Storage, share: int) -> Dataset:
    """Return the dataset with decoded image files cached; this job may use 1/`share` of the cache's space.

    Raises:
        StorageError: if the cache cannot be written.
    """
    folder = Path(storage.cache) / DECODED_FOLDER
    # Keyed by identity of the files, because both splits may share one source.
    caches: dict[int, Decoded] = {}

    def use_cache(original: Any) -> Any:
        split = copy.copy(original)
        if isinstance(original.images, Files):
            if id(original.images) not in caches:
                room = (storage.cache_room or 0) // share
                caches[id(original.images)] = cache_decoded(original.images, folder, room)
            split.images = caches[id(original.images)]
        return split

    return replace(dataset, train=use_cache(dataset.train), validation=use_cache(dataset.validation))


def cache_decoded(files: Files, folder: Path, room: int) -> Decoded:
    """Return the files with their pixels cached in a folder; other cache files are removed if space is short.

    Args:
        files: image files with size and channels set.
        room: bytes that all cache files together may use.

    Raises:
        StorageError: if the file cannot be created.
    """
    make_folder(folder)
    decoded = Decoded(files, folder / f"{_key(files)}{SUFFIX}")
    # The file is created even without enough space: the plan decides what fits.
    _make_room(decoded.path, room - decoded.length)
    decoded.open()
    return decoded


def _make_room(path: Path, limit: int) -> None:
    """Remove unused cache files next to `path`, least recently used first, until they take `limit` bytes."""
    status_by_file = {}
    for file in path.parent.glob(f"*{SUFFIX}"):
        if file != path:
            with contextlib.suppress(FileNotFoundError):
                status_by_file[file] = file.stat()
    excess = sum(status.st_size for status in status_by_file.values()) - limit
    for file in sorted(status_by_file, key=lambda file: status_by_file[file].st_mtime_ns):
        if excess <= 0:
            return
        with file_lock.try_lock(file) as handle, contextlib.suppress(OSError):
            if handle is not None:
                file.unlink()
                excess -= status_by_file[file].st_size


def _key(files: Files) -> str:
    """Return the name of the cache file: a hash of everything that the decoded pixels depend on."""
    parts: list[object] = [VERSION, PIL.__version__, files.size, files.channels, astuple(files.resize)]
    parts += files.stamps()
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _mark(row: npt.NDArray[np.uint8]) -> np.uint64:
    """Return the mark of a row: its checksum, with the bit WRITTEN."""
    return np.uint64(WRITTEN | zlib.crc32(np.ascontiguousarray(row).data))
