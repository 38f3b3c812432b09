"""Stops the decoding of data that would take more memory than is free.

A small file can unpack to more than a machine's memory: a compressed array of zeros, or one text that a million rows
share. The size that a file declares is compared with the free memory before decoding. If a file is decoded in chunks,
their sizes are added up.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.errors import DataError
from drivetrain.hardware import cgroup
from drivetrain.system.units import format_bytes


def free_memory() -> int:
    """Return the bytes that this process may still use, within the limits of machine, control groups and RLIMIT_AS."""
    import psutil

    free = int(psutil.virtual_memory().available)
    cgroup_room = cgroup.read_limits(Path("/")).room
    if cgroup_room is not None:
        free = min(free, cgroup_room)
    address_space_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space_limit != resource.RLIM_INFINITY:
        free = min(free, max(address_space_limit - int(psutil.Process().memory_info().vms), 0))
    return free


@dataclass
class DecodedSize:
    """Sum of the bytes of decoded data; raises an error if it exceeds the memory that was free at first."""

    subject: str
    """File and decoded array or column, for messages."""
    key: str
    """Spec key that names the file; empty for a file of the command line."""
    limit: int = field(default_factory=lambda: free_memory())
    """Largest number of bytes."""
    size: int = 0
    """Number of bytes so far."""

    def add(self, size: int) -> None:
        """Add a number of bytes; raises DataError if the sum exceeds the limit."""
        self.size += size
        if self.size > self.limit:
            raise too_large_error(
                f"{self.subject} takes {format_bytes(self.size)} or more in memory", self.key, self.limit
            )


def too_large_error(description: str, key: str, limit: int | None = None) -> DataError:
    """Return the error for data that does not fit into `limit` bytes, or into the memory that is free now.

    `description` is a sentence without a period; `key` is empty for a file of the command line.
    """
    return DataError(
        description,
        f"up to {format_bytes(free_memory() if limit is None else limit)}: the memory that is free here",
        "raise limits.memory, or write fewer or smaller samples into the file; a small file that unpacks to so much is damaged, "
        "or made to exhaust memory",
        key=key,
    )


def check_fits(size: int, subject: str, key: str) -> None:
    """Check that `size` bytes of decoded data fit into memory; subject and key are as in `DecodedSize`.

    Raises:
        DataError: if it does not fit.
    """
    DecodedSize(subject, key).add(size)
