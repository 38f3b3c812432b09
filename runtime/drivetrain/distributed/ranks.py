"""Connects the processes (ranks) of a data-parallel training, each of which trains on its shard of every batch.

A loss is a sum over the shard, divided by the sum of weights of the whole batch, so the gradients of shards of any size
add up to the gradient of the batch. Only rank 0 writes records and checkpoints. When it ends, the run ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drivetrain.distributed import store
from drivetrain.distributed.world import RANK, WORLD_SIZE
from drivetrain.errors import PeerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest time to wait for another process, which may be evaluating, saving or decoding, or paused. Only rank 0 knows when
it saves, and time passes for a waiting process that is paused itself, so a shorter time would end healthy runs.
"""
RESUME_ADVICE = "run the same command again; it resumes from the last checkpoint; see the log of that process"
REASON_KEY = "reason"
"""Key in the store for the reason why a process ends, which the others could not know otherwise."""
REASON_SECONDS = 2.0
"""Seconds to wait for this reason after a connection has broken."""


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run."""

    rank: int = 0
    """Rank of this process."""
    world_size: int = 1
    """Number of processes."""
    device: str = "cpu"
    store: Store | None = None
    """The store of this group of processes; None if there is only one."""

    @property
    def is_rank0(self) -> bool:
        """Whether this process writes records and checkpoints."""
        return self.rank == 0

    def all_reduce_sum(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of each tensor over all processes, on this process's devices.

        Raises:
            PeerError: if another process has ended.
        """
        return self.start_sums(values)()

    def start_sums(self, values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to sum each tensor over all processes.

        Returns:
            A function that waits for the sums and returns the same result in each call; it may raise PeerError.

        Raises:
            PeerError: if another process has ended.
        """
        if self.world_size == 1 or not values:
            return lambda: list(values)
        flat = torch.cat([value.detach().to(self.device, torch.float64).flatten() for value in values])
        with self.raising_peer_errors():
            work = torch.distributed.all_reduce(flat, async_op=True)

        @functools.cache
        def wait_for_sums() -> list[Tensor]:
            with self.raising_peer_errors():
                work.wait()
            flat_sums = torch.split(flat, [value.numel() for value in values])
            return [flat_sum.view(value.shape).to(value) for flat_sum, value in zip(flat_sums, values, strict=True)]

        return wait_for_sums

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """Gather a few numbers from each process, by rank, without sending them through a GPU.

        Raises:
            PeerError: if another process has ended.
        """
        if self.world_size == 1:
            return [list(values)]
        local_values = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(local_values) for _ in range(self.world_size)]
        with self.raising_peer_errors():
            torch.distributed.all_gather(gathered, local_values)
        return [row.tolist() for row in gathered]

    def broadcast_text(self, text: str, source: int = 0) -> str:
        """Return the text of rank `source` in all processes; each process passes its own text.

        Raises:
            PeerError: if another process has ended.
        """
        if self.world_size == 1:
            return text
        payload = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        size = int(self.all_gather([float(len(payload))])[source][0])
        if self.rank != source:
            payload = torch.empty(size, dtype=torch.uint8)  # receives the text
        with self.raising_peer_errors():
            torch.distributed.broadcast(payload, source)
        return bytes(payload.numpy()).decode()

    def start_broadcast(self, tensors: Iterable[Tensor]) -> Callable[[], None]:
        """Begin to send rank 0's values to all processes in one message; returns a function that receives and writes them.

        Raises:
            PeerError: if another process has ended.
        """
        filled = [tensor.detach() for tensor in tensors if tensor.numel()]
        if self.world_size == 1 or not filled:
            return lambda: None
        # Concatenated as bytes, because dtypes differ and a collective needs contiguous memory.
        sent = torch.cat([tensor.flatten().view(torch.uint8) for tensor in filled])
        with self.raising_peer_errors():
            work = torch.distributed.broadcast(sent, 0, async_op=True)

        def wait_for_values() -> None:
            with self.raising_peer_errors():
                work.wait()
            contents = torch.split(sent, [tensor.nbytes for tensor in filled])
            for tensor, content in zip(filled, contents, strict=True) if not self.is_rank0 else ():
                # Cloned, because a slice may start at an address that is not aligned for the dtype.
                tensor.copy_(content.clone().view(tensor.dtype).view(tensor.shape))

        return wait_for_values

    @contextlib.contextmanager
    def raising_peer_errors(self, *, runs_network: bool = False) -> Iterator[None]:
        """Turn the error of a collective in the block, but with `runs_network` not the network's, into PeerError.

        Raises:
            PeerError: if another process has ended.
        """
        try:
            yield
        except RuntimeError as error:
            if runs_network and not _is_exchange_error(error):
                raise
            raise self._peer_error(error) from None

    def announce_end(self, reason: str) -> None:
        """Announce the reason why this process ends to the others, whose connections to it then break."""
        if self.store:
            with contextlib.suppress(RuntimeError):
                self.store.set(REASON_KEY, reason)

    def barrier(self) -> None:
        """Wait until all processes arrive; raises PeerError if another process has ended."""
        self.all_gather([0.0])

    def leave(self) -> None:
        """Leave the process group after the last exchange; a process that exits inside a group may abort."""
        if self.world_size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _peer_error(self, error: RuntimeError) -> PeerError:
        """Build the error about a lost process after an exchange has failed with `error`, with the reason if known."""
        broken = f"process {self.rank + 1} of {self.world_size} lost the connection to another process"
        return PeerError(
            self._read_reason() or f"{broken}: {str(error).splitlines()[0][:120]}",
            "all processes of the run",
            RESUME_ADVICE,
        )

    def _read_reason(self) -> str:
        """Read the announcement of another process; empty if there is none or the store has ended too."""
        end = time.monotonic() + REASON_SECONDS
        with contextlib.suppress(RuntimeError):
            while self.store and time.monotonic() < end:
                if self.store.check([REASON_KEY]):
                    return bytes(self.store.get(REASON_KEY)).decode()
                time.sleep(0.1)
        return ""


def _is_exchange_error(error: RuntimeError) -> bool:
    """Return whether torch raised this error because an exchange failed."""
    # torch has an error class for NCCL, but not for gloo.
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


ALONE = Ranks()
"""A process that trains without others."""
_joined: list[Ranks] = []
"""The groups that this process has joined; only the last one is in use. Their number gives each group its own prefix in the
store; otherwise a process would find the addresses of an earlier group.
"""


def join_ranks(device: torch.device) -> Ranks:
    """Join the processes that the supervisors have started; returns `ALONE` if there is only one.

    Raises:
        PeerError: if the other processes do not connect.
    """
    count = int(os.environ.get(WORLD_SIZE, "1"))
    if count == 1:
        return ALONE
    if not _joined or not torch.distributed.is_initialized():
        _joined.append(_join(int(os.environ[RANK]), count, device, f"group-{len(_joined)}"))
    return _joined[-1]


def _join(number: int, count: int, device: torch.device, prefix: str) -> Ranks:
    backend = "gloo"
    if device.type == "cuda":
        # CUDA tensors without an explicit device go to this one; Python numbers are sent through gloo.
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    group = torch.distributed.PrefixStore(prefix, store.connect())  # type: ignore[attr-defined]
    try:
        torch.distributed.init_process_group(
            backend, store=group, rank=number, world_size=count, timeout=COLLECTIVE_TIMEOUT
        )
    except RuntimeError as error:
        raise PeerError(
            f"process {number + 1} of {count} cannot connect to the others: {str(error).splitlines()[0][:160]}",
            "a network between all nodes, on any port",
            "check the firewall between the nodes; GLOO_SOCKET_IFNAME names another network interface",
        ) from None
    return Ranks(number, count, str(device), store=group)
