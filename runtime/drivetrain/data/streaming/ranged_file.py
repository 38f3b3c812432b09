"""A shard in a store of which only the parts that are read are fetched."""

from __future__ import annotations

import io
from collections.abc import Callable

TAIL_BYTES = 64 << 10
"""Bytes at the end that come with the first read there: what Parquet readers ask for is mostly in them."""


class NoRangesError(Exception):
    """A server sends the whole file for a part of it."""


class RangedFile(io.RawIOBase):
    """A file for reading.

    Args:
        size: bytes of the whole file.
        get: some bytes of it: from where on, and how many.
    """

    def __init__(self, size: int, get: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self.size, self._get, self._place = size, get, 0
        self._parts: list[tuple[int, bytes]] = []
        """What was fetched: it is small, and the end of a Parquet file is read several times."""

    @property
    def fetched(self) -> int:
        """Bytes that were fetched."""
        return sum(len(content) for _, content in self._parts)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes; fewer only at the end."""
        count = max(0, min(len(buffer), self.size - self._place))
        if count:
            buffer[:count] = self._read(self._place, count)
            self._place += count
        return count

    def _read(self, start: int, count: int) -> bytes:
        for begin, content in self._parts:
            if begin <= start and start + count <= begin + len(content):
                return content[start - begin : start - begin + count]
        begin = min(start, max(0, self.size - TAIL_BYTES)) if start + count > self.size - TAIL_BYTES else start
        end = self.size if begin < start or begin >= self.size - TAIL_BYTES else start + count
        self._parts.append((begin, self._get(begin, end - begin)))
        return self._parts[-1][1][start - begin : start - begin + count]
