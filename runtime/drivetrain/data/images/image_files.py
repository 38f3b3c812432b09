"""Image files on disk, or in a column of a table, decoded when they are used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.bad_samples import BadSample
from drivetrain.data.fingerprint import stamp
from drivetrain.data.images import decode
from drivetrain.data.images.resize import DEFAULT_RESIZE, Resize
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable


class Cells(Protocol):
    """Encoded images that are not files: cells of a table, or contents in memory."""

    def source(self, index: int) -> decode.Source:
        """The content of an image, or the path of its file."""
        ...

    def stamps(self) -> list[object]:
        """Values that change if one of the images changes, for the key of a cache."""
        ...


@dataclass(frozen=True)
class Files:
    """Image files under one folder, each of which was decoded once as a check."""

    root: str
    names: Sequence[str]
    """Paths, relative to `root` or absolute; of images in a table their titles."""
    short_sides: npt.NDArray[np.int64]
    """Shorter side in pixels; 0 for a file that cannot be used."""
    grey: npt.NDArray[np.bool_]
    """Whether each image is stored without color."""
    oblong: npt.NDArray[np.bool_]
    """Whether each image is not square."""
    headers: npt.NDArray[Any]
    """A `decode.ImageHeader` of each file whose values are of another kind than opaque 8-bit ones, else None."""
    contents: npt.NDArray[np.int64]
    """A digest of the pixels of each image; 0 for a file that cannot be used."""
    size: int = 0
    """Side in pixels of the squares that `gather` returns; 0 until `fit_to` sets it."""
    channels: int = 0
    resize: Resize = DEFAULT_RESIZE
    cells: Cells | None = None
    """The images in a table; None if they are files."""

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int) -> str:
        """The path of an image, without bytes that are not UTF-8."""
        return readable(self._path(row))

    def _path(self, row: int) -> str:
        return os.path.join(self.root, self.names[row])

    def fit_to(self, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> Files:
        """The same files, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
        """
        sources = (self.cells.source(row) if self.cells else self._path(row) for row in rows.tolist())
        return decode_all(
            sources, map(self.title, rows.tolist()), (self.size, self.channels, self.resize), _changed_error
        )

    def stamps(self) -> list[object]:
        """Values that change if one of the images changes, for the key of a cache."""
        if self.cells:
            return self.cells.stamps()
        return [(path, stamp(path)) for path in map(os.path.abspath, map(self._path, range(len(self))))]


def check_images(root: str, names: Sequence[str], cells: Cells | None = None) -> tuple[Files, dict[int, BadSample]]:
    """Decode each file, or each image of a table, once.

    Returns:
        The files with their properties, and those that cannot be used, by row.
    """

    def read_header(row: int) -> decode.ImageHeader | str:
        try:
            return decode.look(cells.source(row) if cells else os.path.join(root, names[row]))
        except decode.UnreadableImage as reason:
            return str(reason)

    with decode.quiet():
        headers_or_reasons = decode.map_on_threads(read_header, range(len(names)))
    bad = {
        row: BadSample(readable(os.path.join(root, names[row])), header)
        for row, header in enumerate(headers_or_reasons)
        if isinstance(header, str)
    }
    sides = np.array([0 if isinstance(header, str) else header.short_side for header in headers_or_reasons], np.int64)
    grey = np.array([not isinstance(header, str) and header.grey for header in headers_or_reasons], np.bool_)
    oblong = np.array([not isinstance(header, str) and header.oblong for header in headers_or_reasons], np.bool_)
    unusual_headers = np.empty(len(headers_or_reasons), object)
    for row, header in enumerate(headers_or_reasons):
        unusual_headers[row] = header if isinstance(header, decode.ImageHeader) and not header.is_usual() else None
    contents = np.array([0 if isinstance(header, str) else header.content for header in headers_or_reasons], np.int64)
    return Files(root, names, sides, grey, oblong, unusual_headers, contents, cells=cells), bad


def decode_all(
    sources: Iterable[decode.Source],
    titles: Iterable[str],
    form: tuple[int, int, Resize],
    build_error: Callable[[str, str], DataError],
) -> Tensor:
    """Decode images as squares of a form (size, channels, resize); shape (images, channels, size, size), uint8.

    Raises:
        DataError: the one that `build_error(title, reason)` returns for an image that cannot be decoded.
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
    """The error for a file that could be decoded when the run began."""
    return DataError(
        f"{title}: {reason}", "it could be decoded when the run began", "restore the file; a new run would skip it"
    )
