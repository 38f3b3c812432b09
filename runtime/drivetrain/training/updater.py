"""Updates the weights in a training step: clips the gradients by their norm, and skips a step that is not finite."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import onto
from drivetrain.models.buffers import Buffers
from drivetrain.system.fault_points import fault_point
from drivetrain.training.fused_update import (
    can_skip_update,
    clip_gradients,
    create_missing_momentum,
    rates_from_device,
    skip_unless,
)
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.step_result import StepResult, stack_and_check


class Updater:
    """Runs the optimizer on the gradients of a batch, unless the loss or the norm of the gradients is not finite.

    The host decides that, or the device (`prefers_device`), so that the host need not wait for its result. A skipped
    step leaves weights, buffers and optimizer as they were; only an fp16 loss scale gets smaller.

    Args:
        network: network whose buffers are restored after a failed step.
        optimizer: optimizer of all parameters that are trained in any epoch.
        clip_norm: largest gradient norm; None for no clipping.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
        self.optimizer, self.clip_norm = optimizer, clip_norm
        self.parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self.device = next((p.device for p in self.parameters), torch.device("cpu"))
        self.buffers, self.scaler = Buffers(network), Scaler()
        self.prefers_device = False
        """Whether the device decides if it can, so that the host reads the result a few steps later."""
        self.rounds_rates = False
        """Whether learning rates are rounded to float32, so that captured and other steps give the same bits."""
        self.last_result: StepResult | None = None
        """Result of the last step, which is read before the result of the next step is."""
        self.phase: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext()
        """Function that returns a context which measures its block as the phase of this name."""

    def update(self, loss: Tensor) -> StepResult:
        """Update the weights with the gradients in `parameters`; `loss` is the loss of the same batch, a scalar."""
        fault_point("update")
        self.scaler.unscale(self.parameters)
        norm = clip_gradients(self.parameters, self.clip_norm)
        values, finite = stack_and_check(loss, norm)
        on_device = self.can_update_on_device()
        result = StepResult(values, finite, on_device=on_device, on_read=self.make_read_callback())
        if on_device:
            self._update_if_finite_on_device(finite)
        else:
            self._update_if_finite_on_host(result)
        self.last_result = result
        return result

    def update_in_graph(self, loss: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Update like `update`, but without reading numbers on the host, for a CUDA graph; `rates` by group, float32.

        Returns:
            Loss and gradient norm, shape (2,), and whether both are finite, shape ().
        """
        self.scaler.unscale(self.parameters)
        norm = clip_gradients(self.parameters, self.clip_norm)
        values, finite = stack_and_check(loss, norm)
        with rates_from_device(self.optimizer, rates):
            self._update_if_finite_on_device(finite)
        return values, finite

    def discard(self) -> None:
        """Drop the gradients, and restore the buffers."""
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def can_update_on_device(self) -> bool:
        """Return whether the device can skip an update with non-finite numbers without waiting for the host."""
        return self.prefers_device and can_skip_update(self.optimizer) and self.buffers.are_in_place()

    def rates_on_device(self) -> Tensor:
        """Copy the learning rates of the parameter groups to the device, shape (groups,), float32."""
        return onto(self.device, [float(group["lr"]) for group in self.optimizer.param_groups], torch.float32)

    def make_read_callback(self) -> Callable[[bool], None]:
        """Make the function to call when the host reads the next result.

        It reads the previous result first, so that the loss scale sees the steps in their order.
        """
        # A strong reference would keep the results of all steps alive. A result that no longer exists was read, or a
        # rollback has undone its step.
        previous_result = weakref.ref(self.last_result) if self.last_result else lambda: None

        def read_in_order(finite: bool) -> None:
            result = previous_result()
            if result is not None:
                result.read()
            self.scaler.update(finite)

        return read_in_order

    def _update_if_finite_on_host(self, result: StepResult) -> None:
        """Wait for the numbers of this step, and run the optimizer if they are finite."""
        if self.last_result:
            self.last_result.read()
        # The device's scale is ahead by the steps that the host had not read; now the host knows all of them.
        self.scaler.leave_device()
        if result.finite:
            self._run_optimizer()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.discard()

    def _update_if_finite_on_device(self, finite: Tensor) -> None:
        """Queue the same work on the device, where it depends on `finite`; the host reads no number."""
        with skip_unless(self.optimizer, finite):
            self._run_optimizer()
        self.buffers.keep_if(finite)
        self.scaler.update_on_device(finite)
        self.optimizer.zero_grad(set_to_none=True)

    def _run_optimizer(self) -> None:
        with self.phase("optimizer"):
            create_missing_momentum(self.optimizer)
            rates_are_on_device = isinstance(self.optimizer.param_groups[0]["lr"], Tensor)
            rounds = self.rounds_rates and not rates_are_on_device
            with rates_from_device(self.optimizer, self.rates_on_device()) if rounds else contextlib.nullcontext():
                self.optimizer.step()
