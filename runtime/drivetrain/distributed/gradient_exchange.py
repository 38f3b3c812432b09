"""Sums gradients over all processes while the backward pass still computes others.

Gradients travel in buckets, which are laid out once from the parameters alone, last layer first, and sent in that order
as soon as they are complete. The layout decides in which order a ring of processes adds each number, and so its bits;
torch's DistributedDataParallel changes it after the first step, and a run that is resumed would round otherwise. Nor can
a process that runs out of memory in the middle of a backward pass take part in the rest of the sums there, for which the
others wait; here it sends zeros, all forget the sums, and try again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drivetrain.distributed.ranks import Ranks
from drivetrain.distributed.sharded_tensor import is_sharded
from drivetrain.distributed.world import BUCKET_BYTES, GPU_BUCKET_BYTES

ALIGNMENT_BYTES = 64
"""Bytes; vectorized kernels are slower on gradients that start elsewhere."""


@dataclass(frozen=True)
class _Slot:
    """Where the gradient of a parameter lies in its bucket."""

    parameter: nn.Parameter
    start: int
    strides: tuple[int, ...]
    """Of the parameter: fused kernels need parameter, gradient and moments in the same memory layout."""

    def within(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.parameter.shape, self.strides, self.start)


class _Bucket:
    """Gradients that are sent together, of one dtype and device."""

    def __init__(self, slots: list[_Slot], size: int) -> None:
        self.slots, self.size = slots, size
        self.missing = 0
        """Gradients of this backward pass that have not come yet."""
        self.sent: Tensor | None = None
        """The gradients, and later their sums; None until they are sent."""
        self._kept: dict[torch.dtype, Tensor] = {}

    def fill(self, dtype: torch.dtype | None, *, zeros: bool) -> Tensor:
        """Move the gradients into one tensor, with zeros for those that are missing."""
        self.sent = self._tensor(dtype or self.slots[0].parameter.dtype)
        filled = (
            [] if zeros else [(slot, slot.parameter.grad) for slot in self.slots if slot.parameter.grad is not None]
        )
        if len(filled) < len(self.slots):
            self.sent.zero_()
        if filled:
            torch._foreach_copy_([slot.within(self.sent) for slot, _ in filled], [gradient for _, gradient in filled])
        for slot in self.slots:
            slot.parameter.grad = None
        return self.sent

    def hand_out(self, used: Set[nn.Parameter]) -> None:
        """Give those parameters their summed gradients, the others none."""
        assert self.sent is not None, "finish has sent all"
        dtype = self.slots[0].parameter.dtype
        flat = self.sent if self.sent.dtype == dtype else self._tensor(dtype).copy_(self.sent)
        self.sent = None
        for slot in self.slots:
            slot.parameter.grad = slot.within(flat) if slot.parameter in used else None

    def _tensor(self, dtype: torch.dtype) -> Tensor:
        """Memory for the bucket. A CPU needs longer to get it anew than to fill it, a GPU has an allocator for that."""
        device = self.slots[0].parameter.device
        if device.type != "cpu":
            return torch.zeros(self.size, dtype=dtype, device=device)
        if dtype not in self._kept:
            self._kept[dtype] = torch.zeros(self.size, dtype=dtype)
        return self._kept[dtype]


class GradientExchange:
    """The exchange of one process, without effect if it is the only one.

    Args:
        ranks: this process among those that train together.
        held: context that no signal interrupts.
    """

    def __init__(
        self, ranks: Ranks, hold_signals: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        self.ranks, self.held = ranks, hold_signals
        self.dtype: torch.dtype | None = None
        """In which gradients are sent and summed; None for that of the parameters."""
        self.overlaps = True
        """Whether buckets are sent during the backward pass, and not only after it."""
        self.late = False
        """Whether a gradient came after its bucket had been sent: the step must be computed again."""
        self._buckets: list[_Bucket] = []
        self._of: dict[nn.Parameter, _Bucket] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._idle: set[nn.Parameter] | None = None
        """Parameters without a gradient in the first pass, for which no bucket waits; None before."""
        self._used: set[nn.Parameter] = set()
        """Parameters with a gradient in this pass."""
        self._waits: list[Callable[[], None]] = []
        """For what was sent, in order."""
        self._alike = True
        """Whether all processes have gradients for the same parameters."""
        self._sending = False

    def send_as(self, dtype: torch.dtype) -> None:
        """Send and sum gradients in another format, if there are several processes."""
        if self.ranks.count > 1:
            self.dtype = dtype

    def begin(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
        """Forget the last pass; lay out the buckets if other parameters are trained than then.

        Args:
            model: its order of the parameters is that of the buckets, reversed.
            parameters: of the optimizer.
        """
        if self.ranks.count == 1:
            return
        # Of divided parameters torch sums the gradients.
        trained = {p for p in parameters if p.requires_grad and not is_sharded(p)}
        if trained != self._of.keys():
            self._lay_out([p for p in dict.fromkeys((*model.parameters(), *parameters)) if p in trained])
        self.late, self._used, self._waits = False, set(), []
        for bucket in self._buckets:
            bucket.sent = None
            bucket.missing = sum(slot.parameter not in (self._idle or ()) for slot in bucket.slots)

    def _lay_out(self, parameters: list[nn.Parameter]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._buckets = list(_buckets(parameters[::-1]))
        self._of = {slot.parameter: bucket for bucket in self._buckets for slot in bucket.slots}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._note_arrival)  # type: ignore[no-untyped-call]
            for p in parameters
        ]
        self._idle = None

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """A block with the last backward pass of a batch, which completes the gradients."""
        self._sending = self.ranks.count > 1
        try:
            yield
        finally:
            self._sending = False

    def _note_arrival(self, parameter: Tensor) -> None:
        """A gradient is complete; called by torch in the backward pass."""
        if not self._sending:
            return
        assert isinstance(parameter, nn.Parameter)
        bucket, is_repeated = self._of[parameter], parameter in self._used
        if bucket.sent is not None:
            self.late = True
            # What comes twice, as under reentrant checkpointing, is complete only after the pass.
            self.overlaps = self.overlaps and not is_repeated
            if self._idle:
                self._idle.discard(parameter)
            return
        self._used.add(parameter)
        bucket.missing -= not is_repeated and parameter not in (self._idle or ())
        if self.overlaps:
            # A signal between sending and noting it would leave the processes with different sums.
            with self.held():
                self._send_complete()

    def _send_complete(self) -> None:
        for bucket in self._buckets[len(self._waits) :]:
            if bucket.missing:
                return
            self._waits.append(self.ranks.start_sum(bucket.fill(self.dtype, zeros=False)))

    def finish(self, loss: Tensor | None, notes: Sequence[float] = ()) -> tuple[Tensor | None, list[list[float]]]:
        """Send what has not been sent, with zeros if there is no loss since the pass has failed.

        One small collective then tells all processes the notes of each. It is the only one of a step that is waited for,
        while the last buckets travel. On a CPU the losses are in it.

        Args:
            loss: of this process's shard.
            notes: numbers for all processes.

        Returns:
            The sum of the losses, on a GPU after `collect`, None if there is no loss; and the notes of each, by rank.

        Raises:
            PeerError: if another process is gone.
        """
        if self.ranks.count == 1:
            return loss, [list(notes)]
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device) if loss is None else loss.clone()
        with self.held():
            if loss is not None:
                self._used |= {p for p in self._of if p.grad is not None}
            for bucket in self._buckets[len(self._waits) :]:
                self._waits.append(self.ranks.start_sum(bucket.fill(self.dtype, zeros=loss is None)))
            if total.is_cuda:  # reading the loss would wait for the whole pass
                self._waits.append(self.ranks.start_sum(total))
            rows = self.ranks.all_gather([*notes, self._signature(), 0.0 if total.is_cuda else float(total)])
        self._alike = len({row[-2] for row in rows}) == 1
        if not total.is_cuda:
            total.fill_(sum(row[-1] for row in rows))
        return total if loss is not None else None, [row[:-2] for row in rows]

    def _signature(self) -> float:
        """A number for the set of parameters that have a gradient; the same in processes with the same set."""
        # A hash of integers is not salted; 53 bits fit into a float64.
        return float(hash(tuple(index for index, p in enumerate(self._of) if p in self._used)) % 2**53)

    def collect(self) -> None:
        """Give the parameters their summed gradients; one that no process has stays None.

        Raises:
            PeerError: if another process is gone.
        """
        self._await()
        used = self._used if self._alike else self._find_used_by_any()
        if self._idle is None:
            self._idle = set(self._of) - used
        for bucket in self._buckets:
            bucket.hand_out(used)

    def drop(self) -> None:
        """Forget the sums, in which a process has failed.

        Raises:
            PeerError: if another process is gone.
        """
        self._await()

    def _await(self) -> None:
        for wait in self._waits:
            wait()
        self._waits = []

    def _find_used_by_any(self) -> set[nn.Parameter]:
        rows = self.ranks.all_gather([float(p in self._used) for p in self._of])
        return {p for p, *flags in zip(self._of, *rows, strict=True) if any(flags)}


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[_Bucket]:
    """Parameters in their order, cut into buckets of one dtype and device."""
    open_: dict[tuple[torch.dtype, torch.device], list[_Slot]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for p in parameters:
        kind = (p.dtype, p.device)
        slots, size = open_.setdefault(kind, []), sizes.get(kind, 0)
        limit = BUCKET_BYTES if p.device.type == "cpu" else GPU_BUCKET_BYTES
        if slots and (size + p.numel()) * p.element_size() > limit:
            yield _Bucket(open_.pop(kind), size)
            slots, size = open_.setdefault(kind, []), 0
        slots.append(_Slot(p, size, torch.empty_like(p, device="meta").stride()))
        step = ALIGNMENT_BYTES // p.element_size()
        sizes[kind] = size + -(-p.numel() // step) * step
    for kind, slots in open_.items():
        yield _Bucket(slots, sizes[kind])
