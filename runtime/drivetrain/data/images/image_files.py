"""Image files on disk, or in a column of a table, decoded when they are used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.bad_samples import BadSample
from drivetrain.data.fingerprint import stamp
from drivetrain.data.images import decode
from drivetrain.data.images.resize import USUAL, Resize
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable


class Cells(Protocol):
    """Encoded images that are no files of their own."""

    def source(self, index: int) -> decode.Source:
        """The content of an image, or the path of its file."""
        ...

    def stamps(self) -> list[object]:
        """What changes if one of the images changes."""
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
    oblong: npt.NDArray[np.bool_]
    """Not square."""
    headers: npt.NDArray[Any]
    """A `decode.ImageHeader` of each file whose values are of another kind than opaque 8-bit ones, else None."""
    contents: npt.NDArray[np.int64]
    """A digest of the pixels of each image; 0 for a file that cannot be used."""
    size: int = 0
    channels: int = 0
    resize: Resize = USUAL
    cells: Cells | None = None
    """The images in a table; None if they are files."""

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int) -> str:
        """The path of an image, without bytes that are not UTF-8."""
        return readable(self._path(row))

    def _path(self, row: int) -> str:
        return os.path.join(self.root, self.names[row])

    def fit_to(self, size: int, channels: int, resize: Resize = USUAL) -> Files:
        """The same files, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
        """
        with decode.quiet():
            images = decode.every(
                partial(_pixels, size=self.size, channels=self.channels, resize=self.resize), self._sources(rows)
            )
        return torch.from_numpy(np.stack(images))

    def stamps(self) -> list[object]:
        """What changes if one of the images changes."""
        if self.cells:
            return self.cells.stamps()
        return [(path, stamp(path)) for path in map(os.path.abspath, map(self._path, range(len(self))))]

    def _sources(self, rows: Ids) -> list[tuple[str, decode.Source]]:
        """Titles, and what is decoded."""
        return [(self.title(row), self.cells.source(row) if self.cells else self._path(row)) for row in rows.tolist()]


def check_images(root: str, names: Sequence[str], cells: Cells | None = None) -> tuple[Files, dict[int, BadSample]]:
    """Decode each file, or each image of a table, once; also returns those that cannot be used, by row."""

    def look(row: int) -> decode.ImageHeader | str:
        try:
            return decode.look(cells.source(row) if cells else os.path.join(root, names[row]))
        except decode.UnreadableImage as reason:
            return str(reason)

    with decode.quiet():
        looks = decode.every(look, range(len(names)))
    bad = {
        row: BadSample(readable(os.path.join(root, names[row])), one_look)
        for row, one_look in enumerate(looks)
        if isinstance(one_look, str)
    }
    sides = np.array([0 if isinstance(one_look, str) else one_look.short_side for one_look in looks], np.int64)
    grey = np.array([not isinstance(one_look, str) and one_look.grey for one_look in looks], np.bool_)
    oblong = np.array([not isinstance(one_look, str) and one_look.oblong for one_look in looks], np.bool_)
    headers = np.empty(len(looks), object)
    for row, one_look in enumerate(looks):
        headers[row] = one_look if isinstance(one_look, decode.ImageHeader) and not one_look.is_usual() else None
    contents = np.array([0 if isinstance(one_look, str) else one_look.content for one_look in looks], np.int64)
    return Files(root, names, sides, grey, oblong, headers, contents, cells=cells), bad


def _pixels(image: tuple[str, decode.Source], size: int, channels: int, resize: Resize) -> npt.NDArray[np.uint8]:
    title, source = image
    try:
        return decode.pixels(source, size, channels, resize)
    except decode.UnreadableImage as reason:
        raise DataError(
            f"{title}: {reason}",
            "it could be decoded when the run began",
            "restore the file; a new run would skip it",
        ) from None
