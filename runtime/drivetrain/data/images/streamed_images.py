"""Images in shards, decoded when they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from torch import Tensor

from drivetrain.data.images import decode, image_files
from drivetrain.data.images.image_split import ImageSplit
from drivetrain.data.images.resize import DEFAULT_RESIZE, Resize
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming.open_stream import fetch_groups_ahead
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.errors import DataError


@dataclass(frozen=True)
class StreamedImages:
    """All images of the shards of an index; `rows` are those of the index."""

    reader: ShardReader
    size: int = 0
    channels: int = 0
    resize: Resize = DEFAULT_RESIZE

    def title(self, row: int) -> str:
        """Shard and number of an image."""
        return self.reader.index.title(row)

    def fit_to(self, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> StreamedImages:
        """The same images, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if an image cannot be decoded, or a shard has changed.
            StorageError: if a shard cannot be fetched.
        """
        form = self.size, self.channels, self.resize
        return image_files.decode_all(self.reader.read(rows), map(self.title, rows.tolist()), form, undecodable_error)


class StreamedSplit(ImageSplit):
    """Streamed images for training or for validation."""

    images: StreamedImages

    def fetch_ahead(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """A context in which the shards of the batches are fetched ahead (protocol `FetchesAhead`)."""
        return fetch_groups_ahead(self.images.reader, [self.rows[ids] for ids in groups])


@dataclass(frozen=True)
class EncodedImages:
    """Some encoded images in memory, as `image_files.Cells`."""

    content: Sequence[bytes]

    def source(self, index: int) -> decode.Source:
        """The content of an image."""
        return self.content[index]

    def stamps(self) -> list[object]:
        """Empty: these images are never cached, so nothing has to notice a change."""
        return []


def undecodable_error(title: str, reason: str) -> DataError:
    """The error for an image of a shard that cannot be decoded."""
    return DataError(
        f"{title}: {reason}",
        "images that can be decoded; those of shards are not all decoded before the training, so none can be left out later",
        "write the shard without it; `drivetrain shard` leaves such images out",
    )
