"""How much memory data takes once it is decoded, and how much this process may still take.

A small file can stand for far more than a machine has: a compressed array of zeros, one text that a million rows share.
What a file declares is compared with the free memory before it is decoded, and what is decoded in parts while they add up.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from drivetrain.errors import DataError
from drivetrain.hardware import cgroup
from drivetrain.system.units import format_bytes


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its control groups, and below its own limit."""
    free = int(psutil.virtual_memory().available)
    room = cgroup.read_limits(Path("/")).room
    if room is not None:
        free = min(free, room)
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        free = min(free, max(addresses - int(psutil.Process().memory_info().vms), 0))
    return free


@dataclass
class DecodedSize:
    """Adds up what decoded data takes, and stops before it is more than the memory that was free at first."""

    subject: str
    """What is decoded, for messages: a file, and what of it."""
    key: str
    """The spec key that names the file; empty for one of the command line."""
    limit: int = field(default_factory=lambda: free_memory())
    """Bytes."""
    size: int = 0
    """Bytes so far."""

    def add(self, size: int) -> None:
        """Count some bytes.

        Raises:
            DataError: if all of them together do not fit into memory.
        """
        self.size += size
        if self.size > self.limit:
            raise too_large(f"{self.subject} takes {format_bytes(self.size)} or more in memory", self.key, self.limit)


def too_large(description: str, key: str, limit: int | None = None) -> DataError:
    """The error for data that does not fit into memory.

    Args:
        description: what does not, as a sentence without a period.
        key: the spec key that names the file; empty for one of the command line.
        limit: bytes that fit; None for what is free now.
    """
    return DataError(
        f"{key}: {description}" if key else description,
        f"up to {format_bytes(free_memory() if limit is None else limit)}: the memory that is free here",
        "raise limits.memory, or write fewer or smaller samples into the file; a small file that unpacks to so much is damaged, "
        "or made to exhaust memory",
    )


def check(size: int, subject: str, key: str) -> None:
    """Check that data fits into memory before it is decoded.

    Args:
        size: bytes of the decoded data.
        subject: the file, and what of it, for messages.
        key: the spec key that names the file; empty for one of the command line.

    Raises:
        DataError: if it does not.
    """
    DecodedSize(subject, key).add(size)
