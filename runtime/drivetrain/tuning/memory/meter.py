"""Measures memory of host and GPU: current use and peak of this process, the limit, activations of a forward pass.

All sizes are in bytes. The host's meter counts memory that the kernel cannot drop, as `hardware.used_memory` does.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Dataset, longest_samples
from drivetrain.hardware import cgroup
from drivetrain.job.workload import Workload
from drivetrain.models import recompute
from drivetrain.system import process_tree

FREE_SHARE = 0.1
"""Share of the limit to keep free."""
MIN_FREE_BYTES = 64 << 20
"""Minimum number of bytes to keep free."""
Ceiling = Callable[[], int]


class HostMeter:
    """Measures this process's memory, within the limit of its cgroup."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root, self.highest, self.resets_kernel_peak = root, 0, False

    def read_used(self) -> int:
        """Read the bytes currently in use."""
        used = process_tree.read_own_bytes(self.root)
        self.highest = max(self.highest, used)
        return used

    def reset_peak(self) -> None:
        """Return free memory to the system, and reset the peak."""
        gc.collect()
        process_tree.release_free_memory()
        with contextlib.suppress(OSError):
            (self.root / "proc/self/clear_refs").write_text("5")
            self.resets_kernel_peak = True
        self.highest = 0
        self.read_used()

    def peak(self) -> int:
        """Return the peak since `reset_peak`, from the kernel if it can reset its counter, else the highest reading."""
        released_bytes = process_tree.read_released_bytes(self.root) if self.resets_kernel_peak else 0
        return max(self.read_used() + released_bytes, self.highest)

    def read_ceiling(self) -> int:
        """Read the bytes that this process may use if other processes do not use more than now."""
        limits, available = cgroup.read_limits(self.root), int(psutil.virtual_memory().available)
        room = available if limits.room is None else min(limits.room, available)
        total = available if limits.memory is None else limits.memory
        return self.read_used() + room - compute_headroom(total)

    @contextlib.contextmanager
    def guard(self, ceiling: Ceiling, on_saved: Callable[[Tensor], None] = lambda tensor: None) -> Iterator[None]:
        """Check memory whenever a tensor is saved for the backward pass, and stop if it exceeds the limit.

        Raises:
            MemoryError: if the limit is exceeded, in the middle of a pass.
        """

        def check(tensor: Tensor) -> Tensor:
            if self.read_used() > ceiling():
                raise MemoryError("not enough memory below the headroom")
            return tensor.detach()

        def check_saved(tensor: Tensor) -> Tensor:
            on_saved(tensor)
            return check(tensor)

        with torch.autograd.graph.saved_tensors_hooks(check_saved, check):
            yield


class GpuMeter:
    """Measures this process's memory on one GPU, by torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def read_used(self) -> int:
        """Read the bytes of all tensors."""
        return torch.cuda.memory_allocated(self.device)

    def reset_peak(self) -> None:
        """Return free memory to the system, and reset the peak."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the peak bytes of tensors since `reset_peak`."""
        return torch.cuda.max_memory_allocated(self.device)

    def read_ceiling(self) -> int:
        """Read the bytes that tensors may use if other processes do not use more than now."""
        free, total = torch.cuda.mem_get_info(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(self.device))
        return min(torch.cuda.memory_reserved(self.device) + free, allowed) - compute_headroom(allowed)

    @contextlib.contextmanager
    def guard(self, ceiling: Ceiling) -> Iterator[None]:
        """Check nothing: if memory runs out, CUDA's allocator raises, and no process is killed."""
        yield


MemoryMeter = HostMeter | GpuMeter


def meter_for(device: torch.device) -> MemoryMeter:
    """Return the meter of a device."""
    return GpuMeter(device) if device.type == "cuda" else HostMeter()


def compute_headroom(total: int) -> int:
    """Return the bytes of `total` to keep free."""
    return max(MIN_FREE_BYTES, int(FREE_SHARE * total))


COUNTED_SAMPLES = 2
"""Number of samples in the counted pass; BatchNorm needs two."""


@dataclass
class ActivationCount:
    """Counts the bytes saved in one forward pass."""

    network_storages: set[int] = field(default_factory=set)
    """Storages of the network's own parameters and buffers."""
    counted: dict[int, Tensor] = field(default_factory=dict)
    """Counted tensors by storage; kept alive, so that no storage is reused."""
    total: int = 0
    input_bytes: int = 0
    """Bytes of the inputs of all blocks."""
    bytes_by_block: list[int] = field(default_factory=list)
    """Bytes saved inside each block."""

    def add(self, tensor: Tensor) -> None:
        """Count a saved tensor once."""
        key = tensor.untyped_storage()._cdata
        if key not in self.network_storages and key not in self.counted:
            self.counted[key] = tensor.detach()
            self.total += tensor.untyped_storage().nbytes()

    @property
    def recomputed(self) -> int:
        """Peak bytes if blocks save only their inputs: all inputs, everything outside of blocks, and the largest block."""
        return self.total - sum(self.bytes_by_block) + self.input_bytes + max(self.bytes_by_block, default=0)


def count_activations(facts: Workload, network: nn.Module, dataset: Dataset) -> Workload:
    """Count the activation bytes of the largest samples, and return the workload with them.

    It runs one forward pass on the host and leaves network and random state unchanged. If memory runs out, it uses the
    count so far.
    """
    ids = longest_samples(dataset.train, COUNTED_SAMPLES)
    inputs = dataset.prepare(dataset.train.gather(ids), ids, None)
    count, meter, was_training = ActivationCount(), HostMeter(), network.training
    ceiling = meter.read_ceiling()
    guard = meter.guard(lambda: ceiling, count.add)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            recompute.keeping_buffers(network),
            _watch_blocks(network, count),
            guard,
        ):
            count.network_storages = {t.untyped_storage()._cdata for t in (*network.parameters(), *network.buffers())}
            network.train()(*inputs)
    except MemoryError:
        pass
    finally:
        network.train(was_training)
    return replace(facts, activations=count.total // len(ids), recomputed=count.recomputed // len(ids))


@contextmanager
def _watch_blocks(network: nn.Module, count: ActivationCount) -> Iterator[None]:
    """Count the bytes of each block separately."""
    totals_before: list[int] = []

    def enter(block: nn.Module, inputs: tuple[object, ...]) -> None:
        totals_before.append(count.total)
        count.input_bytes += sum(x.numel() * x.element_size() for x in inputs if isinstance(x, Tensor))

    def leave(block: nn.Module, inputs: tuple[object, ...], outputs: object) -> None:
        count.bytes_by_block.append(count.total - totals_before[-1])

    blocks = recompute.find_repeated_blocks(network)
    handles = [block.register_forward_pre_hook(enter) for block in blocks]
    handles += [block.register_forward_hook(leave) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
