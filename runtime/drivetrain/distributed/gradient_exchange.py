"""Sums the gradients of all ranks during the backward pass, with torch's DistributedDataParallel (DDP).

- DDP looks for unused parameters from the result of the wrapped module, so the module returns the loss. An output that
  the loss ignores would otherwise make the ranks wait for its gradient forever.
- Its hook sums instead of averaging, because each loss is already divided by the weight of the whole batch.
- `find_unused_parameters` also makes torch keep its initial layout of buckets. The layout determines the order of
  additions in a ring of ranks, so with it a resumed run has the same bits as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
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
    """Sums the gradients of all ranks; does nothing in a process that trains alone."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._ddp: DistributedDataParallel | None = None
        self._trained_parameters: list[nn.Parameter] = []
        self._has_computed = False
        """Whether the wrapped network has computed a loss."""

    def wrap_if_changed(self, network: nn.Module) -> bool:
        """Wrap the network in DDP before the first step, and again when `model.unfreeze` changes its trained parameters.

        Returns:
            Whether it was wrapped now; never in a process that trains alone.

        Raises:
            PeerError: if another process has ended.
        """
        trained = [p for p in network.parameters() if p.requires_grad]
        if self.ranks.world_size == 1 or [id(p) for p in trained] == [id(p) for p in self._trained_parameters]:
            return False
        self._trained_parameters, self._has_computed = trained, False
        # Remove the hooks of the wrapped network before wrapping it again.
        self._ddp = None
        _make_compiler_folder()
        # This optimization would split a compiled network at the borders of the buckets.
        torch._dynamo.config.optimize_ddp = False
        # A warning recommends another name of `broadcast_buffers`, which older torch does not have.
        with warnings.catch_warnings(action="ignore", category=FutureWarning), self.ranks.raising_peer_errors():
            self._ddp = DistributedDataParallel(
                _LossModule(network),
                broadcast_buffers=False,
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
                bucket_cap_mb=CPU_BUCKET_MEGABYTES if trained[0].device.type == "cpu" else GPU_BUCKET_MEGABYTES,
            )
        self._ddp.register_comm_hook(None, _sum_bucket)
        return True

    def all_reduce_if(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context for the passes of a micro-batch; only the last one of a batch sends the sums of gradients."""
        return contextlib.nullcontext() if is_last or self._ddp is None else self._ddp.no_sync()

    def route_through_ddp(self, compute_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return `compute_loss` such that its backward pass sums the gradients of all ranks.

        The returned function raises SpecError if the network reports gradients twice.
        """
        return compute_loss if self._ddp is None else functools.partial(self._compute_loss, compute_loss)

    def _compute_loss(self, compute_loss: Callable[..., Tensor], *arguments: object) -> Tensor:
        assert self._ddp is not None
        loss: Tensor = self._ddp(compute_loss, *arguments)
        if not self._has_computed:
            self._has_computed = True
            _refuse_reentrant(loss)
        return loss

    def sum_loss_and_gather(self, loss: Tensor, status: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        """Sum the losses and gather the statuses of all ranks; here the host waits for all of them.

        Args:
            loss: loss of this rank's shard, a scalar tensor.
            status: numbers to send to all ranks.

        Returns:
            The sum of the losses, and the statuses by rank.

        Raises:
            PeerError: if another process has ended.
        """
        if self.ranks.world_size == 1:
            return loss, [list(status)]
        if loss.is_cuda:  # reading the loss would wait for the whole pass
            (total,) = self.ranks.all_reduce_sum([loss])
            return total, self.ranks.all_gather(status)
        rows = self.ranks.all_gather([*status, float(loss)])
        losses, statuses = [row[-1] for row in rows], [row[:-1] for row in rows]
        return loss.new_tensor(sum(losses)), statuses


# Without annotations: register_comm_hook compares them by identity, and here they would be strings.
def _sum_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """Sum the gradients of a bucket over all ranks: a communication hook of DDP."""
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _make_compiler_folder() -> None:
    """Make torch's cache folder, without which importing Dynamo fails even if nothing is compiled."""
    try:
        os.makedirs(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.curdir), exist_ok=True)
    except OSError:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


def _refuse_reentrant(loss: Tensor) -> None:
    """Refuse a graph with reentrant checkpoints, which DDP does not allow."""
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
