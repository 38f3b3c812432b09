"""Sums the gradients of all ranks during the backward pass, with torch's DistributedDataParallel (DDP).

- DDP waits for each parameter, even if a loss does not depend on it, as on an output that the loss ignores.
  `_DependOnAll` reports such a parameter at once. torch's `find_unused_parameters` takes one more exchange in every step.
- The hook sums instead of averaging, because each loss is already divided by the weight of the whole batch.
- DDP sends gradients in buckets, and fills them in the order in which its first backward pass reports the parameters.
  How a ring of ranks rounds depends on them. So the first pass is a rehearsal with a fixed order; otherwise a resumed run
  would have other bits than an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import functools
import os
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
REPORTED_TWICE = "mark a variable ready only once"
"""Words of DDP's error about a gradient that is reported twice, as by torch.utils.checkpoint with use_reentrant=True."""


class _DependOnAll(torch.autograd.Function):
    """Returns a loss unchanged, but as if it depended on all `parameters`; their gradients stay the same."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameter_count = len(parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*gradients, *[None] * ctx.parameter_count)


class _LossModule(nn.Module):
    """The network with the function that computes its loss."""

    def __init__(self, network: nn.Module, trained_parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.network = network  # registered only for its parameters: `compute_loss` calls it
        self.trained_parameters = trained_parameters

    def forward(self, compute_loss: Callable[..., Tensor], *arguments: object) -> Any:
        loss = compute_loss(*arguments)
        if not loss.requires_grad:
            return loss  # its backward pass fails, as in a process that trains alone
        return _DependOnAll.apply(loss, *self.trained_parameters)  # type: ignore[no-untyped-call]


class GradientExchange:
    """Sums the gradients of all ranks; does nothing in a process that trains alone."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._ddp: DistributedDataParallel | None = None
        self._trained_parameters: list[nn.Parameter] = []
        self._unused_parameters: list[nn.Parameter] = []
        """Parameters without a gradient on this rank in the last batch."""

    def wrap_if_changed(self, network: nn.Module) -> bool:
        """Wrap the network in DDP if its trained parameters have changed, as by `model.unfreeze`; returns whether they have.

        Raises:
            PeerError: if another process has ended.
        """
        trained = [p for p in network.parameters() if p.requires_grad]
        if self.ranks.world_size == 1 or [id(p) for p in trained] == [id(p) for p in self._trained_parameters]:
            return False
        self._trained_parameters = trained
        # Remove the hooks of the wrapped network before wrapping it again.
        self._ddp = None
        _make_compiler_folder()
        # This optimization would split a compiled network at the borders of the buckets.
        torch._dynamo.config.optimize_ddp = False
        # A warning recommends another name of `broadcast_buffers`, which older torch does not have.
        with warnings.catch_warnings(action="ignore", category=FutureWarning), self.ranks.raising_peer_errors():
            self._ddp = DistributedDataParallel(
                _LossModule(network, trained),
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=CPU_BUCKET_MEGABYTES if trained[0].device.type == "cpu" else GPU_BUCKET_MEGABYTES,
            )
            self._ddp.register_comm_hook(self._unused_parameters, _sum_bucket)
            self._rehearse()
        return True

    def _rehearse(self) -> None:
        """Fix the layout of DDP's buckets by a backward pass that reports the parameters in their reverse order."""
        assert self._ddp is not None
        start = torch.zeros((), device=self._trained_parameters[0].device, requires_grad=True)
        self._ddp(lambda: functools.reduce(_DependOnAll.apply, self._trained_parameters, start)).backward()
        self._ddp.zero_grad()

    @contextlib.contextmanager
    def all_reduce_if(self, is_last: bool) -> Iterator[None]:
        """Run the passes of a micro-batch in the block; only the last one of a batch sends the sums of gradients.

        Raises:
            SpecError: if the network reports a gradient twice.
        """
        self._unused_parameters.clear()
        try:
            with contextlib.nullcontext() if is_last or self._ddp is None else self._ddp.no_sync():
                yield
        except RuntimeError as error:
            if REPORTED_TWICE not in str(error):
                raise
            raise SpecError(
                "the network calls torch.utils.checkpoint with use_reentrant=True, and several processes train it",
                "use_reentrant=False, or one process",
                "pass use_reentrant=False to checkpoint in the network, or set limits: {processes: 1}",
            ) from None

    def route_through_ddp(self, compute_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return `compute_loss` such that its backward pass sums the gradients of all ranks."""
        return compute_loss if self._ddp is None else functools.partial(self._ddp, compute_loss)

    def sum_loss_and_gather(self, loss: Tensor, status: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        """Sum the losses of all ranks, which are scalars, and gather their statuses, by rank; waits for all of them.

        Raises:
            PeerError: if another process has ended.
        """
        if self.ranks.world_size == 1:
            return loss, [list(status)]
        # Reading a loss on a GPU would wait for the whole pass.
        rows = self.ranks.all_gather([*status, 0.0 if loss.is_cuda else float(loss), len(self._unused_parameters)])
        if all(row[-1] for row in rows):
            self._drop_unused_gradients()  # no rank has all gradients, so some may be missing in all ranks
        total = self.ranks.all_reduce_sum([loss])[0] if loss.is_cuda else loss.new_tensor(sum(row[-2] for row in rows))
        return total, [row[:-2] for row in rows]

    def _drop_unused_gradients(self) -> None:
        """Drop the gradients of parameters that no rank has used; DDP has set them to 0, with which they would decay."""
        unused = {id(parameter) for parameter in self._unused_parameters}
        is_used = torch.tensor([float(id(parameter) not in unused) for parameter in self._trained_parameters])
        (users,) = self.ranks.all_reduce_sum([is_used])
        for parameter, count in zip(self._trained_parameters, users, strict=True):
            if count == 0:
                parameter.grad = None


# Without annotations: register_comm_hook compares them by identity, and here they would be strings.
def _sum_bucket(unused_parameters, bucket):  # type: ignore[no-untyped-def]
    """Sum the gradients of a bucket over all ranks, and list those that this rank lacks: a communication hook of DDP."""
    unused_parameters += [parameter for parameter in bucket.parameters() if parameter.grad is None]
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _make_compiler_folder() -> None:
    """Make torch's cache folder, without which importing Dynamo fails even if nothing is compiled."""
    try:
        os.makedirs(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.curdir), exist_ok=True)
    except OSError:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
