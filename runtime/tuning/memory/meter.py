"""Memory meters of host and GPU: what this process uses now, its peak, and the limit.

All sizes in bytes. The host's meter reads resident memory, which is what the kernel's OOM killer looks at.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch
from torch import Tensor

from runtime.hardware import cgroup
from runtime.hardware.kernel_file import read_text
from runtime.system import free_memory

HEADROOM = 0.1
"""Share of the limit that stays free."""
LEAST = 64 << 20
"""Bytes that stay free at least."""
Ceiling = Callable[[], int]
_PAGE = os.sysconf("SC_PAGE_SIZE")


class HostMeter:
    """The memory of this process, under the limit of its cgroup."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root, self.most, self.exact = root, 0, False

    def used(self) -> int:
        """Bytes in use now."""
        now = int((self.root / "proc/self/statm").read_text().split()[1]) * _PAGE
        self.most = max(self.most, now)
        return now

    def begin(self) -> None:
        """Return free memory to the system, and reset the peak."""
        gc.collect()
        free_memory.give_back()
        with contextlib.suppress(OSError):
            (self.root / "proc/self/clear_refs").write_text("5")
            self.exact = True
        self.most = 0
        self.used()

    def peak(self) -> int:
        """Peak since `begin`: from the kernel, or the highest `used` if the kernel cannot reset its counter."""
        self.used()
        rows = read_text(self.root / "proc/self/status").splitlines()
        known = next((int(row.split()[1]) << 10 for row in rows if row.startswith("VmHWM:")), 0)
        return max(self.most, known if self.exact else 0)

    def ceiling(self) -> int:
        """The most that this process may use, if all others stay as they are."""
        limits, available = cgroup.read_limits(self.root), int(psutil.virtual_memory().available)
        room = available if limits.room is None else min(limits.room, available)
        whole = available if limits.memory is None else limits.memory
        return self.used() + room - headroom(whole)

    @contextlib.contextmanager
    def guarded(self, ceiling: Ceiling, kept: Callable[[Tensor], None] = lambda tensor: None) -> Iterator[None]:
        """Check memory at every tensor that is saved for the backward pass, and stop once the limit is passed.

        Args:
            ceiling: returns the present limit in bytes.
            kept: called with each saved tensor.

        Raises:
            MemoryError: in the middle of a pass.
        """

        def look(tensor: Tensor) -> Tensor:
            if self.used() > ceiling():
                raise MemoryError("not enough memory below the headroom")
            return tensor.detach()

        def keep(tensor: Tensor) -> Tensor:
            kept(tensor)
            return look(tensor)

        with torch.autograd.graph.saved_tensors_hooks(keep, look):
            yield


class GpuMeter:
    """The memory of one GPU, from torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def used(self) -> int:
        """Bytes of all tensors now."""
        return torch.cuda.memory_allocated(self.device)

    def begin(self) -> None:
        """Return free memory to the system, and reset the peak."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Peak bytes of tensors since `begin`."""
        return torch.cuda.max_memory_allocated(self.device)

    def ceiling(self) -> int:
        """The most that tensors may use, if all other processes stay as they are."""
        free, whole = torch.cuda.mem_get_info(self.device)
        allowed = int(whole * torch.cuda.get_per_process_memory_fraction(self.device))
        return min(torch.cuda.memory_reserved(self.device) + free, allowed) - headroom(allowed)

    @contextlib.contextmanager
    def guarded(self, ceiling: Ceiling) -> Iterator[None]:
        """No checks: CUDA's allocator raises, and no process is killed."""
        yield


Gauge = HostMeter | GpuMeter


def of(device: torch.device) -> Gauge:
    """The meter of a device."""
    return GpuMeter(device) if device.type == "cuda" else HostMeter()


def headroom(whole: int) -> int:
    """Bytes of `whole` that stay free."""
    return max(LEAST, int(HEADROOM * whole))
