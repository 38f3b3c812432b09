"""Images for training, for validation, or new ones, wherever their pixels come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.images.npz_images import ImageArrays
from drivetrain.data.stateless_random import Ids


class GatherImages(Protocol):
    """Images by their rows: files, arrays, a cache of decoded ones, or shards."""

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
    """Some rows of images; new ones may have no targets."""

    def __init__(self, images: GatherImages, rows: Ids, targets: Tensor | None) -> None:
        self.images, self.rows = images, rows
        self.targets: Targets = {} if targets is None else {"": targets}

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Pixels of these samples: one tensor (N, C, S, S), uint8 or float32."""
        return (self.images.gather(self.rows[ids]),)

    def contents(self) -> Contents:
        """A digest of each image; none if they are not at hand."""
        return self.images.contents[self.rows] if isinstance(self.images, ComparableImages) else np.zeros(0, np.int64)

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        if isinstance(self.images, ImageArrays):
            self.images = self.images.changed(change)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """What lists call one image."""
        return self.images.title(int(self.rows[index]))
