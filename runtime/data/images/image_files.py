"""Image files on disk, decoded when they are used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.bad_samples import BadSample
from runtime.data.images import decode
from runtime.data.images.resize import USUAL, Resize
from runtime.data.stateless_random import Ids
from runtime.errors import DataError


@dataclass(frozen=True)
class Files:
    """Image files under one folder, each of which was decoded once as a check."""

    root: str
    names: Sequence[str]
    """Paths, relative to `root` or absolute."""
    short_sides: npt.NDArray[np.int64]
    """Shorter side in pixels; 0 for a file that cannot be used."""
    grey: npt.NDArray[np.bool_]
    oblong: npt.NDArray[np.bool_]
    """Not square."""
    size: int = 0
    channels: int = 0
    resize: Resize = USUAL

    def __len__(self) -> int:
        return len(self.names)

    def title(self, row: int) -> str:
        """The path of an image."""
        return os.path.join(self.root, self.names[row])

    def fitted(self, size: int, channels: int, resize: Resize = USUAL) -> Files:
        """The same files, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
        """
        with decode.quiet():
            images = decode.every(
                partial(_pixels, size=self.size, channels=self.channels, resize=self.resize), self._paths(rows)
            )
        return torch.from_numpy(np.stack(images))

    def whole_paths(self) -> set[str]:
        """All paths, normalized so that two lists can be compared."""
        return {os.path.normpath(os.path.join(os.path.abspath(self.root), name)) for name in self.names}

    def _paths(self, rows: Ids) -> list[str]:
        return [self.title(row) for row in rows.tolist()]


def checked(root: str, names: Sequence[str]) -> tuple[Files, dict[int, BadSample]]:
    """Decode each file once; also returns the files that cannot be used, by row."""
    with decode.quiet():
        looks = decode.every(_look, [os.path.join(root, name) for name in names])
    bad = {
        row: BadSample(os.path.join(root, names[row]), seen) for row, seen in enumerate(looks) if isinstance(seen, str)
    }
    sides = [0 if isinstance(seen, str) else seen.short_side for seen in looks]
    grey = [not isinstance(seen, str) and seen.grey for seen in looks]
    oblong = [not isinstance(seen, str) and seen.oblong for seen in looks]
    return Files(root, names, np.array(sides, np.int64), np.array(grey, np.bool_), np.array(oblong, np.bool_)), bad


def _look(path: str) -> decode.ImageHeader | str:
    try:
        return decode.look(path)
    except decode.UnreadableImage as reason:
        return str(reason)


def _pixels(path: str, size: int, channels: int, resize: Resize) -> npt.NDArray[np.uint8]:
    try:
        return decode.pixels(path, size, channels, resize)
    except decode.UnreadableImage as reason:
        raise DataError(
            f"{path}: {reason}",
            "it could be decoded when the run began",
            "restore the file; a new run would skip it",
        ) from None
