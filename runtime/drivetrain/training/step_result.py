"""The loss of a batch and the result of its step, which is read from the GPU in one transfer, as late as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drivetrain.system import torch_errors


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a batch over all processes; the parameters have its gradients."""

    total: Tensor
    """A scalar."""
    sample_hashes: Sequence[float] = ()
    """Hashes of the sample ids that each process has computed, by rank, for the digest of the batch."""


class StepResult:
    """The result of a step. Its numbers stay on the device until one of them is read.

    Args:
        values: loss and gradient norm, a tensor of shape (2,) on the device.
        finite: whether both are finite, a boolean tensor of shape () on the device.
        on_device: whether the device itself skips the update of weights, buffers and scale unless `finite`.
        on_read: function that is called once with `finite`, when the host has read it.
    """

    def __init__(self, values: Tensor, finite: Tensor, *, on_device: bool, on_read: Callable[[bool], None]) -> None:
        self.finite_on_device = finite
        """Whether loss and norm are finite: a boolean tensor of shape () on the device."""
        self.on_device = on_device
        self._on_read: Callable[[bool], None] | None = on_read
        self._values = _copy_without_waiting(values) if on_device else values
        self._computed = torch.cuda.Event() if on_device and values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._computed:
            self._computed.record()
        self._numbers: tuple[float, float] | None = None
        self.sample_hashes: Sequence[float] = ()
        """As in `BatchLoss`."""

    def read(self) -> tuple[float, float]:
        """Read loss and gradient norm; the first call waits until the device has computed them."""
        if self._numbers is None:
            if self._computed:
                self._computed.synchronize()
            loss, norm = self._values.tolist()
            self._numbers = loss, norm
            # Cleared first, because the function may read this result again.
            on_read, self._on_read = self._on_read, None
            if on_read:
                on_read(self.finite)
        return self._numbers

    @property
    def loss(self) -> float:
        """The loss of the batch before the update."""
        return self.read()[0]

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients before clipping."""
        return self.read()[1]

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are finite; otherwise the weights are unchanged."""
        return all(map(math.isfinite, self.read()))


def _copy_without_waiting(values: Tensor) -> Tensor:
    """Start a copy to the host; wait for the GPU if no memory can be pinned (WSL#8447)."""
    try:
        return values.to("cpu", non_blocking=True)
    except RuntimeError as error:
        if not torch_errors.is_out_of_memory(error):
            raise
        return values.to("cpu")


def stack_and_check(loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Stack loss and gradient norm, shape (2,) float64; also returns whether both are finite, shape ()."""
    values = torch.stack([loss.double(), norm.double()])
    # x - x is 0 for a finite number, else NaN: three kernels, where torch.isfinite launches five.
    return values, (values - values).sum() == 0
