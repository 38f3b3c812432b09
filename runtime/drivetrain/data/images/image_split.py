"""A split of images (training, validation, or images to predict), wherever their pixels come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.images.npz_images import ImageArrays
from drivetrain.data.stateless_random import Ids


class ImageRows(Protocol):
    """Images that are read by their row numbers: files, arrays, a cache of decoded images, or shards."""

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size)."""
        ...

    def title(self, row: int) -> str:
        """A name for one image in lists: its path, its row, or its shard and number."""
        ...


@runtime_checkable
class ComparableImages(Protocol):
    """Images whose content can be compared without reading them again."""

    @property
    def contents(self) -> Contents:
        """A digest of each image."""
        ...


class ImageSplit:
    """Some rows of a source of images, with their targets; images to predict have none.

    `ids` count the samples of this split, `rows` those of `images`.
    """

    def __init__(self, images: ImageRows, rows: Ids, targets: Tensor | None) -> None:
        self.images = images
        self.rows = rows
        # The only head has no name.
        self.targets: Targets = {} if targets is None else {"": targets}

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Pixels of these samples: one tensor (N, C, S, S), uint8 or float32."""
        return (self.images.gather(self.rows[ids]),)

    def contents(self) -> Contents:
        """A digest of each image; empty if the source cannot give them without reading the images again."""
        return self.images.contents[self.rows] if isinstance(self.images, ComparableImages) else np.zeros(0, np.int64)

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Put `change(array)` in place of every array in memory, so that processes can share one copy."""
        if isinstance(self.images, ImageArrays):
            self.images = self.images.map_array(change)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """The name of one image in lists and messages."""
        return self.images.title(int(self.rows[index]))
