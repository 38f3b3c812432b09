"""Gauge: what memory this process holds, the most it has held, and the most it may; of the host, or of a GPU.

All sizes in bytes. The gauge of the host looks at resident pages, which is what the kernel kills for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch
from torch import Tensor

from runtime.hardware import cgroup

HEADROOM = 0.1
"""Share of what may be used that stays free."""
LEAST = 64 << 20
"""Bytes that stay free at least."""
Ceiling = Callable[[], int]
_PAGE = os.sysconf("SC_PAGE_SIZE")


class HostMeter:
    """The memory of this process, under the limit of its control group."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root, self.most, self.exact = root, 0, False

    def used(self) -> int:
        """What is held now."""
        now = int((self.root / "proc/self/statm").read_text().split()[1]) * _PAGE
        self.most = max(self.most, now)
        return now

    def begin(self) -> None:
        """Give back what is free, and forget the peak so far."""
        gc.collect()
        _give_back()
        with contextlib.suppress(OSError):
            (self.root / "proc/self/clear_refs").write_text("5")
            self.exact = True
        self.most = 0
        self.used()

    def peak(self) -> int:
        """The most since `begin`: from the kernel, or, where it cannot start anew, the most that `used` has seen."""
        self.used()
        rows = cgroup.text(self.root / "proc/self/status").splitlines()
        known = next((int(row.split()[1]) << 10 for row in rows if row.startswith("VmHWM:")), 0)
        return max(self.most, known if self.exact else 0)

    def ceiling(self) -> int:
        """The most that may be held, if all others stay as they are."""
        limits, available = cgroup.read_limits(self.root), int(psutil.virtual_memory().available)
        room = available if limits.room is None else min(limits.room, available)
        whole = available if limits.memory is None else limits.memory
        return self.used() + room - headroom(whole)

    @contextlib.contextmanager
    def guarded(self, ceiling: Ceiling, kept: Callable[[Tensor], None] = lambda tensor: None) -> Iterator[None]:
        """Look at memory with every tensor that is kept for the backward pass, and stop where the ceiling is passed.

        Args:
            ceiling: tells the bytes that may be held at that moment.
            kept: is told of each of these tensors.

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
    """The memory of one GPU, through torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def used(self) -> int:
        """What tensors hold now."""
        return torch.cuda.memory_allocated(self.device)

    def begin(self) -> None:
        """Give back what is free, and forget the peak so far."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most that tensors have held since `begin`."""
        return torch.cuda.max_memory_allocated(self.device)

    def ceiling(self) -> int:
        """The most that tensors may hold, if all other processes stay as they are."""
        free, whole = torch.cuda.mem_get_info(self.device)
        allowed = int(whole * torch.cuda.get_per_process_memory_fraction(self.device))
        return min(torch.cuda.memory_reserved(self.device) + free, allowed) - headroom(allowed)

    @contextlib.contextmanager
    def guarded(self, ceiling: Ceiling) -> Iterator[None]:
        """Nothing to look at: this allocator raises, and nobody is killed."""
        yield


Gauge = HostMeter | GpuMeter


def of(device: torch.device) -> Gauge:
    """The gauge of a device."""
    return GpuMeter(device) if device.type == "cuda" else HostMeter()


def headroom(whole: int) -> int:
    """What stays free of `whole`."""
    return max(LEAST, int(HEADROOM * whole))


def _give_back() -> None:
    """Let the allocator return free pages: kept ones would count as held."""
    ours = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        function = getattr(ours, name, None)
        if function is not None:
            function(*arguments)
