"""How much memory a run uses, as the kernel counts it against a limit: for the live view, the report, forecasts and bench."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.system import process_tree


@dataclass(frozen=True)
class UsedMemory:
    """Sizes in bytes."""

    processes: int
    """Of this process and its descendants; a page that several of them share counts once."""
    group: int | None
    """Of the control group that has the limit; None without one, as the group is then the whole machine."""
    limit: int | None

    @property
    def counted(self) -> int:
        """Return the bytes that count against the limit, if there is one; else the bytes of the processes."""
        return self.processes if self.group is None else self.group


def read_used_memory(group: ProcessCgroup, root: Path = Path("/")) -> UsedMemory:
    """Read the memory in use now.

    Args:
        group: of this process.
        root: root of the file system.
    """
    limit, used = group.read_memory()
    return UsedMemory(process_tree.sum_memory_bytes(root), used if limit else None, limit)
