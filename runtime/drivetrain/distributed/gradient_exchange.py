"""Sums gradients over all processes during the backward pass, with torch's DistributedDataParallel.

DistributedDataParallel searches for unused parameters from the result of the wrapped module, so the module must return
the loss. Its hook sums instead of averaging: each loss is already divided by the weight of the whole batch. With
`find_unused_parameters` torch keeps its first layout of buckets. The layout determines the order of additions in a ring
of processes, so a resumed run rounds in the same way as an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import SpecError

CPU_BUCKET_MEGABYTES, GPU_BUCKET_MEGABYTES = 4.0, 25.0
"""Size of a bucket, small enough to be sent early. Between GPUs, starting a collective costs more than its transfer."""
REENTRANT = "CheckpointFunctionBackward"
"""Name of the graph node of torch.utils.checkpoint with use_reentrant=True, which reports a gradient twice."""


class _LossModule(nn.Module):
    """The network with the function that computes its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network  # registered only for its parameters: `compute_loss` calls it

    def forward(self, compute_loss: Callable[..., Tensor], *arguments: object) -> Tensor:
        return compute_loss(*arguments)


class GradientExchange:
    """Exchanges the gradients of this process with other processes; does nothing in a single process."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._wrapped: DistributedDataParallel | None = None
        self._trained: list[nn.Parameter] = []
        self._is_new = False
        """Whether the wrapped network has not computed a loss yet."""
        self._sent_at = 0.0
        """Time when the last bucket of the current pass was sent."""

    def wrap_if_changed(self, model: nn.Module) -> bool:
        """Wrap the network if its trained parameters have changed, as in every stage of `model.unfreeze`.

        Returns:
            Whether it was wrapped, as in the first step; never in a single process.

        Raises:
            PeerError: if another process has ended.
        """
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.ranks.count == 1 or [id(p) for p in trained] == [id(p) for p in self._trained]:
            return False
        self._trained, self._is_new = trained, True
        # Remove the hooks of the wrapped network before wrapping it again.
        self._wrapped = None
        _make_compiler_folder()
        # This optimization would split a compiled network at the borders of the buckets.
        torch._dynamo.config.optimize_ddp = False
        # A warning recommends another name of `broadcast_buffers`, which older torch does not have.
        with warnings.catch_warnings(action="ignore", category=FutureWarning), self.ranks.raising_peer_errors():
            self._wrapped = DistributedDataParallel(
                _LossModule(model),
                broadcast_buffers=False,
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
                bucket_cap_mb=CPU_BUCKET_MEGABYTES if trained[0].device.type == "cpu" else GPU_BUCKET_MEGABYTES,
            )
        self._wrapped.register_comm_hook(None, self._make_hook())
        return True

    def _make_hook(self) -> Callable[[Any, Any], Any]:
        def sum_bucket(state, bucket):  # type: ignore[no-untyped-def]
            # register_comm_hook compares annotations by identity, and here they would be strings.
            self._sent_at = time.monotonic()
            work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        return sum_bucket

    @contextlib.contextmanager
    def sending(self, *, is_last: bool) -> Iterator[None]:
        """Run the forward and backward pass of a micro-batch in the block; gradients are sent with the last one."""
        wrapped = self._wrapped
        with contextlib.nullcontext() if is_last or wrapped is None else wrapped.no_sync():
            yield
        if is_last and wrapped is not None:
            # The backward pass ends when all sums have arrived.
            self.ranks.waits.add(time.monotonic() - self._sent_at)

    def route_through_ddp(self, compute_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return `compute_loss` such that its backward pass sums the gradients of all processes.

        The returned function raises SpecError if the network reports gradients twice.
        """
        return compute_loss if self._wrapped is None else functools.partial(self._compute_loss, compute_loss)

    def _compute_loss(self, compute_loss: Callable[..., Tensor], *arguments: object) -> Tensor:
        assert self._wrapped is not None
        loss: Tensor = self._wrapped(compute_loss, *arguments)
        if self._is_new:
            self._is_new = False
            _refuse_reentrant(loss)
        return loss

    def sum_loss_and_gather(self, loss: Tensor, note: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        """Sum the losses and gather the notes of all processes; here the host waits for all of them.

        Args:
            loss: loss of this process's share, a scalar tensor.
            note: numbers to send to all processes.

        Returns:
            The sum of the losses, and the notes by rank.

        Raises:
            PeerError: if another process has ended.
        """
        if self.ranks.count == 1:
            return loss, [list(note)]
        if loss.is_cuda:  # reading the loss would wait for the whole pass
            (total,) = self.ranks.all_reduce_sum([loss])
            return total, self.ranks.all_gather(note)
        rows = self.ranks.all_gather([*note, float(loss)])
        losses, notes = [row[-1] for row in rows], [row[:-1] for row in rows]
        return loss.new_tensor(sum(losses)), notes


def _make_compiler_folder() -> None:
    """Make torch's cache folder, without which importing Dynamo fails even if nothing is compiled."""
    try:
        os.makedirs(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.curdir), exist_ok=True)
    except OSError:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


def _refuse_reentrant(loss: Tensor) -> None:
    """Refuse a graph with reentrant checkpoints, which DistributedDataParallel does not allow."""
    visited, pending = set[Any](), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name() == REENTRANT:
            raise SpecError(
                "the network calls torch.utils.checkpoint with use_reentrant=True, and several processes train it",
                "use_reentrant=False, or one process",
                "pass use_reentrant=False to checkpoint in the network, or set limits: {processes: 1}",
            )
        pending += [following for following, _ in node.next_functions]
