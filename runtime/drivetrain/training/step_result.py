"""The result of a training step, read from the GPU in one transfer, at the latest possible moment."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from drivetrain.system import torch_errors


class StepResult:
    """The result of a step. Its numbers stay on the device until one of them is looked at.

    Args:
        values: loss and gradient norm, a tensor of shape (2,) on the device.
        finite: whether both are finite, a boolean tensor of shape () on the device.
        on_device: whether weights, buffers and scale depend on `finite` by the device's own arithmetic.
        then: called once, when `finite` is known to the host.
    """

    def __init__(self, values: Tensor, finite: Tensor, on_device: bool, then: Callable[[bool], None]) -> None:
        self.device_finite = finite
        """Whether loss and norm are finite: a boolean tensor of shape () on the device."""
        self.on_device = on_device
        self._then: Callable[[bool], None] | None = then
        self._values = _without_waiting(values) if on_device else values
        self._ready = torch.cuda.Event() if on_device and values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._ready:
            self._ready.record()
        self._read: tuple[float, float] | None = None

    def read(self) -> tuple[float, float]:
        """Loss and gradient norm; the first call waits until the device has computed them."""
        if self._read is None:
            if self._ready:
                self._ready.synchronize()
            loss, norm = self._values.tolist()
            self._read = loss, norm
            then, self._then = self._then, None
            if then:
                then(self.finite)
        return self._read

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
        """False if loss or gradient norm were not finite; the weights are then unchanged."""
        return all(map(math.isfinite, self.read()))


def _without_waiting(values: Tensor) -> Tensor:
    """A copy in pinned memory, for which nothing waits; in ordinary memory where no memory can be pinned (WSL#8447)."""
    try:
        return values.to("cpu", non_blocking=True)
    except RuntimeError as error:
        if not torch_errors.is_out_of_memory(error):
            raise
        return values.to("cpu")


def result_of(loss: Tensor, norm: Tensor, on_device: bool, then: Callable[[bool], None]) -> StepResult:
    """The result of a step from its loss and gradient norm, scalars on the device."""
    values, finite = numbers_of(loss, norm)
    return StepResult(values, finite, on_device, then)


def numbers_of(loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient norm, shape (2,) float64, and whether both are finite, shape ()."""
    values = torch.stack([loss.double(), norm.double()])
    # 0 for numbers, NaN for the others: three kernels, where torch.isfinite is five.
    return values, (values - values).sum() == 0
