"""Data-parallel training in several processes (ranks), each on its shard of every batch.

Losses are sums over the whole batch, divided by the whole batch's sum of weights. So the gradients of all shards add up
to the gradient of the batch, whatever their sizes. Rank 0 leads: it alone writes records and checkpoints, and when it ends, the run ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from drivetrain.distributed import store
from drivetrain.distributed.heartbeat import ACTION, Heartbeat
from drivetrain.distributed.world import RANK, WORLD_SIZE
from drivetrain.errors import PeerError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a process waits for another, which may be saving or decoding."""

SENT_TOGETHER = 64 * 2**20
"""Bytes of tensors that are broadcast in one piece."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run."""

    number: int = 0
    count: int = 1
    device: str = "cpu"
    heartbeat: Heartbeat | None = None

    @property
    def is_rank0(self) -> bool:
        """Whether this process writes records and checkpoints."""
        return self.number == 0

    def all_reduce_sum(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over all processes, on this process's devices.

        Raises:
            PeerError: if another process is gone.
        """
        return self.start_sums(values)()

    def start_sums(self, values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to sum each tensor over all processes.

        Returns:
            What waits for the sums, the same ones at each call, and raises PeerError if another process is gone.

        Raises:
            PeerError: if another process is gone.
        """
        if self.count == 1 or not values:
            return lambda: list(values)
        flat = torch.cat([value.detach().to(self.device, torch.float64).flatten() for value in values])
        wait = self.start_sum(flat)

        @functools.cache
        def sums() -> list[Tensor]:
            wait()
            parts = torch.split(flat, [value.numel() for value in values])
            return [part.view(value.shape).to(value) for part, value in zip(parts, values, strict=True)]

        return sums

    def start_sum(self, flat: Tensor) -> Callable[[], None]:
        """Begin to replace a tensor by its sum over all processes; all must begin the same sums in the same order.

        Returns:
            What waits for the sum, and raises PeerError if another process is gone.

        Raises:
            PeerError: if another process is gone.
        """
        begun: list[torch.distributed.Work] = []
        size = flat.numel() * flat.element_size()
        self._call(lambda: begun.append(torch.distributed.all_reduce(flat, async_op=True)), size)
        return lambda: self._call(begun[0].wait, -size)

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of each process, by rank: a few Python floats, never sent through a GPU.

        Raises:
            PeerError: if another process is gone.
        """
        return self.start_gather(values)()

    def start_gather(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Begin what `all_gather` does; returns what waits for it.

        Raises:
            PeerError: if another process is gone.
        """
        if self.count == 1:
            return lambda: [list(values)]
        local_values = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(local_values) for _ in range(self.count)]
        begun: list[torch.distributed.Work] = []
        self._call(lambda: begun.append(torch.distributed.all_gather(gathered, local_values, async_op=True)))

        def rows() -> list[list[float]]:
            self._call(begun[0].wait)
            return [row.tolist() for row in gathered]

        return rows

    def from_rank0(self, values: Sequence[float]) -> list[float]:
        """The numbers of rank 0.

        Raises:
            PeerError: if another process is gone.
        """
        return self.all_gather(values)[0]

    def text_from(self, source: int, text: str) -> str:
        """The text that one process has, in all of them.

        Raises:
            PeerError: if another process is gone.
        """
        if self.count == 1:
            return text
        sent = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        size = int(self.all_gather([float(len(sent))])[source][0])
        sent = sent if self.number == source else torch.empty(size, dtype=torch.uint8)
        self._call(lambda: torch.distributed.broadcast(sent, source))
        return bytes(sent.numpy()).decode()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy rank 0's values to every process, in place: initial weights, BatchNorm's statistics.

        Raises:
            PeerError: if another process is gone.
        """
        if self.count == 1:
            return
        for group in _groups(tensor for tensor in tensors if tensor.numel()):
            self.start_broadcast(group)()

    @torch.no_grad()
    def start_broadcast(self, tensors: Iterable[Tensor]) -> Callable[[], None]:
        """Begin to copy a few of rank 0's values to every process; returns what waits for them, and fills them in only then.

        Raises:
            PeerError: if another process is gone.
        """
        non_empty = [tensor for tensor in tensors if tensor.numel()]
        if self.count == 1 or not non_empty:
            return lambda: None
        # Concatenated as bytes, since dtypes differ and a collective needs contiguous memory.
        sent = torch.cat([tensor.detach().flatten().view(torch.uint8) for tensor in non_empty])
        begun: list[torch.distributed.Work] = []
        self._call(lambda: begun.append(torch.distributed.broadcast(sent, 0, async_op=True)), len(sent))

        @torch.no_grad()
        def fill() -> None:
            self._call(begun[0].wait, -len(sent))
            if self.is_rank0:
                return
            sizes = [tensor.numel() * tensor.element_size() for tensor in non_empty]
            for tensor, part in zip(non_empty, torch.split(sent, sizes), strict=True):
                # Cloned, because a slice may start at an address that is not aligned for the dtype.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

        return fill

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A block in which torch itself exchanges tensors, as between processes that hold parts of the weights.

        Raises:
            PeerError: if another process is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not _is_of_network(error):
                raise
            raise self._peer_error(error) from None

    def barrier(self) -> None:
        """Wait until all processes arrive.

        Raises:
            PeerError: if another process is gone.
        """
        self.all_gather([0.0])

    def leave(self) -> None:
        """Leave the process group once nothing more is exchanged; a process that exits inside a group may abort."""
        if self.heartbeat:
            self.heartbeat.end()
        if self.count > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _call(self, collective: Callable[[], object], travels: int = 0) -> None:
        """Begin a collective, or wait for it; `travels` as in `Heartbeat.waiting`."""
        try:
            with self.heartbeat.waiting(travels) if self.heartbeat else contextlib.nullcontext():
                collective()
        except RuntimeError as error:
            raise self._peer_error(error) from None

    def _peer_error(self, error: RuntimeError) -> PeerError:
        """Who is gone, after an exchange has failed with this error."""
        who = self.heartbeat.lost() if self.heartbeat else ""
        if who and self.heartbeat and self.is_rank0:
            self.heartbeat.publish(who)
        broken = f"process {self.number + 1} of {self.count} lost the connection to another process"
        return PeerError(who or f"{broken}: {str(error)[:120]}", "all processes of the run", ACTION)


def _groups(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that are sent together; the copy that is sent takes little memory, unless one of them is larger."""
    group: list[Tensor] = []
    size = 0
    for tensor in tensors:
        group.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= SENT_TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group


def _is_of_network(error: RuntimeError) -> bool:
    """Whether an exchange has failed: torch has a class for NCCL, and none for gloo."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


ALONE = Ranks()


_joined: list[Ranks] = []
"""This process's place in each group that it has joined, last the current one, however many runs it assembles; the keys
of each group have a prefix of their own, or a process would find the addresses of a group that is gone.
"""


def join_ranks(device: torch.device) -> Ranks:
    """Join the processes that the supervisors have started; a single process if they have started no others.

    Raises:
        PeerError: if the others do not connect.
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
        # CUDA tensors without an explicit device go to this one; Python numbers are sent between hosts.
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    meeting, heartbeat = store.meeting_store(), Heartbeat(number, count, prefix)
    group = torch.distributed.PrefixStore(prefix, meeting)  # type: ignore[attr-defined]
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
    heartbeat.begin()
    return Ranks(number, count, str(device), heartbeat)
