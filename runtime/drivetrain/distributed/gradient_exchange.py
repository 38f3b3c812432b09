"""Sums gradients over all processes while the backward pass still computes others.

Gradients are sent in buckets. Their layout depends only on the parameters, last layer first, and each bucket is sent in
that order as soon as it is complete. torch's DistributedDataParallel is not used, for two reasons. It changes the layout
after the first step; the layout decides in which order a ring of processes adds the numbers, so a resumed run would round
differently. And if a process runs out of memory during a backward pass, its peers would wait there for its remaining
gradients; here that process sends zeros, all processes drop the sums, and try again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drivetrain.distributed.ranks import Ranks
from drivetrain.distributed.world import BUCKET_BYTES, GPU_BUCKET_BYTES

ALIGNMENT_BYTES = 64
"""Gradients start at multiples of this in a bucket; vectorized kernels are slower at other addresses."""


@dataclass(frozen=True)
class _Slot:
    """Where the gradient of a parameter is stored in its bucket."""

    parameter: nn.Parameter
    start: int
    """Index of its first number."""
    strides: tuple[int, ...]
    """Strides of the parameter: fused kernels need parameter, gradient and moments in the same memory layout."""

    def view_in(self, flat: Tensor) -> Tensor:
        """The gradient as a view into the one-dimensional tensor of the bucket."""
        return flat.as_strided(self.parameter.shape, self.strides, self.start)


class _Bucket:
    """Gradients of one dtype and device, which are sent together; `size` is their count of numbers, with alignment."""

    def __init__(self, slots: list[_Slot], size: int) -> None:
        self.slots, self.size = slots, size
        self.missing = 0
        """Number of gradients that the backward pass has not computed yet."""
        self.sent: Tensor | None = None
        """The gradients that were sent, which become their sums over all processes; None until then."""
        self._kept: dict[torch.dtype, Tensor] = {}

    def fill(self, *, zeros: bool) -> Tensor:
        """Move the gradients into one tensor, with zeros for missing ones; with `zeros`, for all of them."""
        self.sent = self._allocate(self.slots[0].parameter.dtype)
        present = [] if zeros else [(slot, g) for slot in self.slots if (g := slot.parameter.grad) is not None]
        if len(present) < len(self.slots):
            self.sent.zero_()
        if present:
            views = [slot.view_in(self.sent) for slot, _ in present]
            torch._foreach_copy_(views, [gradient for _, gradient in present])
        for slot in self.slots:
            slot.parameter.grad = None
        return self.sent

    def hand_out(self, used: Set[nn.Parameter]) -> None:
        """Set the summed gradients of the parameters in `used`; the other parameters get None."""
        assert self.sent is not None, "finish has sent all"
        flat, self.sent = self.sent, None
        for slot in self.slots:
            slot.parameter.grad = slot.view_in(flat) if slot.parameter in used else None

    def _allocate(self, dtype: torch.dtype) -> Tensor:
        """A tensor for the bucket, of shape (size,); reused on a CPU, where allocating it takes longer than filling it."""
        device = self.slots[0].parameter.device
        if device.type != "cpu":
            return torch.zeros(self.size, dtype=dtype, device=device)
        if dtype not in self._kept:
            self._kept[dtype] = torch.zeros(self.size, dtype=dtype)
        return self._kept[dtype]


class GradientExchange:
    """Exchanges the gradients of this process with the others; has no effect if it is the only one.

    Args:
        ranks: this process among those that train together.
        hold_signals: opens a context that no signal interrupts.
    """

    def __init__(
        self, ranks: Ranks, hold_signals: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        self.ranks, self.hold_signals = ranks, hold_signals
        self.overlaps = True
        """Whether buckets are sent during the backward pass, and not only after it."""
        self.late = False
        """Whether a gradient was computed after its bucket had been sent: the step must be computed again."""
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._idle: set[nn.Parameter] | None = None
        """Parameters without a gradient in the first pass, for which no bucket waits; None until that pass has ended."""
        self._used: set[nn.Parameter] = set()
        """Parameters with a gradient in this pass."""
        self._sum_waits: list[Callable[[], None]] = []
        """For each bucket that was sent, in order: a function that waits for its sum."""
        self._same_used = True
        """Whether all processes have gradients for the same parameters."""
        self._sending = False
        """Whether complete gradients may be sent: in the last backward pass of a batch."""

    def begin(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
        """Prepare for the gradients of a batch; lay out the buckets anew if the trained parameters have changed.

        Args:
            model: the buckets have its parameters in reverse order.
            parameters: those of the optimizer.
        """
        if self.ranks.count == 1:
            return
        trained = {p for p in parameters if p.requires_grad}
        if trained != self._bucket_of.keys():
            self._lay_out([p for p in dict.fromkeys((*model.parameters(), *parameters)) if p in trained])
        self.late, self._used, self._sum_waits = False, set(), []
        for bucket in self._buckets:
            bucket.sent = None
            bucket.missing = sum(slot.parameter not in (self._idle or ()) for slot in bucket.slots)

    def _lay_out(self, parameters: list[nn.Parameter]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._buckets = list(_cut_into_buckets(parameters[::-1]))
        self._bucket_of = {slot.parameter: bucket for bucket in self._buckets for slot in bucket.slots}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._note_arrival)  # type: ignore[no-untyped-call]
            for p in parameters
        ]
        self._idle = None

    @contextlib.contextmanager
    def sending(self, is_last: bool = True) -> Iterator[None]:
        """A block for a backward pass; in the last one of a batch, gradients are sent when they are complete."""
        self._sending = is_last and self.ranks.count > 1
        try:
            yield
        finally:
            self._sending = False

    def _note_arrival(self, parameter: Tensor) -> None:
        """Note that a gradient is complete; called by torch in the backward pass."""
        if not self._sending:
            return
        assert isinstance(parameter, nn.Parameter)
        bucket, is_repeated = self._bucket_of[parameter], parameter in self._used
        if bucket.sent is not None:
            self.late = True
            # A gradient that arrives twice, as under reentrant checkpointing, is complete only after the pass.
            self.overlaps = self.overlaps and not is_repeated
            if self._idle:
                self._idle.discard(parameter)
            return
        self._used.add(parameter)
        if not is_repeated and parameter not in (self._idle or ()):
            bucket.missing -= 1
        if self.overlaps:
            # A signal between sending and noting it would leave the processes with different sums.
            with self.hold_signals():
                self._send_complete_buckets()

    def _send_complete_buckets(self) -> None:
        for bucket in self._buckets[len(self._sum_waits) :]:
            if bucket.missing:
                return
            self._sum_waits.append(self.ranks.start_sum(bucket.fill(zeros=False)))

    def finish(self, loss: Tensor | None, notes: Sequence[float] = ()) -> tuple[Tensor | None, list[list[float]]]:
        """Send the remaining buckets, filled with zeros if there is no loss because the pass has failed.

        Then one small collective gives all processes the notes of each process, and on a CPU its loss. It is the only
        collective of a step that is waited for here; the last buckets are still being sent meanwhile.

        Args:
            loss: loss of this process's shard, a scalar tensor.
            notes: numbers to give to all processes.

        Returns:
            The sum of the losses (None without a loss; on a GPU it is valid after `collect`), and the notes by rank.

        Raises:
            PeerError: if another process is gone.
        """
        if self.ranks.count == 1:
            return loss, [list(notes)]
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device) if loss is None else loss.clone()
        with self.hold_signals():
            if loss is not None:
                self._used |= {p for p in self._bucket_of if p.grad is not None}
            for bucket in self._buckets[len(self._sum_waits) :]:
                self._sum_waits.append(self.ranks.start_sum(bucket.fill(zeros=loss is None)))
            if total.is_cuda:  # reading the loss would wait for the whole pass
                self._sum_waits.append(self.ranks.start_sum(total))
            local_loss = 0.0 if total.is_cuda else float(total)
            rows = self.ranks.all_gather([*notes, self._hash_used(), local_loss])
        self._same_used = len({row[-2] for row in rows}) == 1
        if not total.is_cuda:
            total.fill_(sum(row[-1] for row in rows))
        return total if loss is not None else None, [row[:-2] for row in rows]

    def _hash_used(self) -> float:
        """A hash of the set of parameters that have a gradient."""
        # A hash of integers is not salted; 53 bits fit into a float64.
        return float(hash(tuple(index for index, p in enumerate(self._bucket_of) if p in self._used)) % 2**53)

    def collect(self) -> None:
        """Set the summed gradients of the parameters; a gradient that no process has stays None.

        Raises:
            PeerError: if another process is gone.
        """
        self._wait_for_sums()
        used = self._used if self._same_used else self._find_used_by_any()
        if self._idle is None:
            self._idle = set(self._bucket_of) - used
        for bucket in self._buckets:
            bucket.hand_out(used)

    def drop(self) -> None:
        """Drop the sums of a step in which a process has failed; raises PeerError if another process is gone."""
        self._wait_for_sums()

    def _wait_for_sums(self) -> None:
        for wait in self._sum_waits:
            wait()
        self._sum_waits = []

    def _find_used_by_any(self) -> set[nn.Parameter]:
        rows = self.ranks.all_gather([float(p in self._used) for p in self._bucket_of])
        return {p for p, *flags in zip(self._bucket_of, *rows, strict=True) if any(flags)}


def _cut_into_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[_Bucket]:
    """Distribute parameters over buckets, in their order; each bucket has one dtype and device."""
    open_slots: dict[tuple[torch.dtype, torch.device], list[_Slot]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for p in parameters:
        kind = (p.dtype, p.device)
        slots, size = open_slots.setdefault(kind, []), sizes.get(kind, 0)
        limit = BUCKET_BYTES if p.device.type == "cpu" else GPU_BUCKET_BYTES
        if slots and (size + p.numel()) * p.element_size() > limit:
            yield _Bucket(open_slots.pop(kind), size)
            slots, size = open_slots.setdefault(kind, []), 0
        slots.append(_Slot(p, size, torch.empty_like(p, device="meta").stride()))
        alignment_numbers = ALIGNMENT_BYTES // p.element_size()
        sizes[kind] = size + -(-p.numel() // alignment_numbers) * alignment_numbers
    for kind, slots in open_slots.items():
        yield _Bucket(slots, sizes[kind])
