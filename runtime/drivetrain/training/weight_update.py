"""The update of the weights and of their average: clipping by the norm of all gradients, and what torch's fused kernels need.

These kernels take a flag, on the device, whether numbers are finite, and change nothing if not. So the host need not
wait for the gradients before it queues the update and the next step.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.custom.user_loss import cannot_split_error
from drivetrain.data.dataset import onto
from drivetrain.system import torch_errors
from drivetrain.system.fault_points import fault_point
from drivetrain.training.losses import Objective
from drivetrain.training.peers import HalfUpdated, out_of_memory_error
from drivetrain.training.step_forward import StepForward
from drivetrain.training.step_options import StepResult, build_result


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale the gradients so that their norm is at most `max_norm`; returns the norm before, of shape ().

    Args:
        parameters: of the optimizer.
        max_norm: None for no clipping, which costs no pass over the gradients.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    # A sparse gradient may have a row several times; its sum counts.
    rows = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    total_norm: Tensor = nn.utils.get_total_norm(rows)
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm)
    return total_norm


FUSED_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose fused kernels take `found_inf`, as for torch's GradScaler."""


def can_skip_update(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the device can skip an update by itself.

    Not before the first update: the kernel would leave momentum that it creates uninitialized.
    """
    if not isinstance(optimizer, FUSED_KINDS) or not all(group.get("fused") for group in optimizer.param_groups):
        return False
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return True
    return all(_has_state(optimizer, group) for group in optimizer.param_groups)


def _has_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
        return True
    return all(p in optimizer.state for p in group["params"] if p.grad is not None)


@torch.no_grad()
def create_missing_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give parameters their first momentum that have a gradient for the first time after others had theirs: layers that
    were frozen, or that no batch has used. torch's fused kernel takes all parameters of a group or none for new.

    The kernel then computes what a first step is in torch: a momentum that is the gradient itself.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not group["momentum"] or not group.get("fused"):
            continue
        used = [p for p in group["params"] if p.grad is not None]
        without_momentum = [p for p in used if optimizer.state.get(p, {}).get("momentum_buffer") is None]
        for p in without_momentum if len(without_momentum) < len(used) else ():
            gradient = p.grad + group["weight_decay"] * p
            optimizer.state[p]["momentum_buffer"] = gradient * (group["dampening"] / group["momentum"])


@contextlib.contextmanager
def rates_from_device(optimizer: torch.optim.Optimizer, rates: Tensor) -> Iterator[None]:
    """A block in which an update takes its learning rates from the device: `rates` by group, float32."""
    before = [(group["lr"], group.get("capturable")) for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates.unbind(), strict=True):
        group["lr"] = rate
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, (number, capturable) in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = number
            if "capturable" in group:
                group["capturable"] = capturable


@contextlib.contextmanager
def skip_unless(optimizer: torch.optim.Optimizer, finite: Tensor) -> Iterator[None]:
    """A block in which an update changes nothing unless `finite`, a boolean tensor of shape () on the device."""
    optimizer.grad_scale, optimizer.found_inf = None, finite.logical_not().float()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


class StepUpdate(StepForward):
    """How a step updates the weights, and what it does if memory is too small for that."""

    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    objective: Objective
    clip_norm: float | None

    def use_micro_batch(self, samples: int | None) -> None:
        """Set the micro-batch size; None for the whole batch."""
        self._drop_recordings()
        self.state.micro_batch = samples

    def _drop_recordings(self) -> None:
        if self.options.captured:
            self.options.captured.drop()

    def rates_on_device(self) -> Tensor:
        """The learning rates of the parameter groups on the device, shape (groups,), float32."""
        return onto(self.device, [float(group["lr"]) for group in self.optimizer.param_groups], torch.float32)

    def update(self, loss: Tensor, samples: int) -> StepResult:
        """Update the weights with the accumulated gradients of a batch, of which this process has computed `samples`.

        Raises:
            RestartSmaller: if memory ran out in one of several processes.
            HalfUpdated: if memory ran out; micro-batches have half the size from now on.
        """
        try:
            return self._update_weights(loss)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            if self.options.peers.ranks.count > 1:
                raise out_of_memory_error(self.options.peers.ranks, self.micro_batch or samples) from None
            self._discard_step()
            self._halve_micro_batch(samples, error)
            raise HalfUpdated("out of memory in the middle of an update") from None

    def _update_weights(self, loss: Tensor) -> StepResult:
        fault_point("update")
        self.scaler.unscale(self.parameters)
        norm = clip_gradients(self.parameters, self.clip_norm)
        result = build_result(loss, norm, self.can_update_on_device(), self.follow_results())
        if result.on_device:
            self._update_on_device(result.device_finite)
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._update_on_host(result)
        self.state.last_result = result
        return result

    def follow_results(self) -> Callable[[bool], None]:
        """What the host does once it has read the result of the next step: its scale follows all steps in their order."""
        # Weak: a result that nobody else has will never be read.
        last = weakref.ref(self.state.last_result) if self.state.last_result else lambda: None

        def follow(finite: bool) -> None:
            if earlier := last():
                earlier.read()
            self.scaler.update(finite)

        return follow

    def _update_on_host(self, result: StepResult) -> None:
        if self.state.last_result:
            self.state.last_result.read()
        self.scaler.leave_device()
        if result.finite:
            self._run_optimizer()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._discard_step()

    def _run_optimizer(self) -> None:
        with self.options.phase("optimizer"):
            create_missing_momentum(self.optimizer)
            if self.options.captured is None or isinstance(self.optimizer.param_groups[0]["lr"], Tensor):
                self.optimizer.step()
                return
            # Recorded steps round the learning rates to float32, and so must all others.
            with rates_from_device(self.optimizer, self.rates_on_device()):
                self.optimizer.step()

    def can_update_on_device(self) -> bool:
        """Whether the device can skip an update with numbers that are not finite, without waiting for the host."""
        return self.state.prefers_device and can_skip_update(self.optimizer) and self.buffers.are_in_place()

    def _update_on_device(self, finite: Tensor) -> None:
        """Update weights, buffers and scale if `finite`, else restore them; the host reads no number."""
        with skip_unless(self.optimizer, finite):
            self._run_optimizer()
        self.buffers.keep_if(finite)
        self.scaler.update_on_device(finite)

    def _discard_step(self) -> None:
        self.buffers.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _halve_micro_batch(self, batch_samples: int, error: BaseException) -> None:
        samples = min(self.micro_batch or batch_samples, batch_samples)
        if obstacle := self.objective.split_obstacle:
            given = f"{samples} samples at once" if samples > 1 else "the whole batch"
            raise cannot_split_error(f"out of memory with {given}", obstacle) from None
        if samples <= self.options.min_samples:
            raise torch_errors.out_of_memory_error(error, samples) from None
        self.use_micro_batch(max(self.options.min_samples, samples // 2))
        self.options.report_memory(
            f"out of memory with micro-batch {samples}; continuing with {self.micro_batch}, same batch size"
        )


class Ema:
    """Average = decay * average + (1 - decay) * weights, after every step.

    The decay is min(decay, (1 + updates) / (10 + updates)), which limits the influence of the initial weights in short
    runs (as TensorFlow's ExponentialMovingAverage with `num_updates`). Floating-point buffers are averaged too, others
    copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.updates_on_device: Tensor | None = None
        """`updates` on the device, shape (), one step ahead of the host; None until a step needs it."""
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        """The averaged tensors by name."""
        self.averaged_names = {name for name, value in self.average.items() if _is_finite(value)}
        """Names of what is averaged; all else is copied, such as a mask of minus infinity, whose average would be NaN."""

    @torch.no_grad()
    def update(self, model: nn.Module, finite: Tensor) -> None:
        """Update the average with the model's weights if `finite`, a boolean tensor of shape () on their device.

        The host need not know its value yet; call `count` once it does.
        """
        if self.updates_on_device is None:
            self.updates_on_device = onto(finite.device, [self.updates], torch.float64)[0]
        self.updates_on_device += finite  # in place: a recorded step knows this tensor
        decay = ((1 + self.updates_on_device) / (10 + self.updates_on_device)).clamp(max=self.decay)
        weight = torch.where(finite, 1 - decay, torch.zeros_like(decay))
        groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        copies, copied = list[Tensor](), list[Tensor]()
        for name, value in model.state_dict().items():
            if name in self.averaged_names:
                averages, values = groups.setdefault(value.dtype, ([], []))
                averages.append(self.average[name])
                values.append(value)
            else:
                copies.append(self.average[name])
                copied.append(value)
        # A step that was not finite has left these buffers as they were. Empty lists are an error.
        if copies:
            torch._foreach_copy_(copies, copied)
        for dtype, (averages, values) in groups.items():
            if weight.device.type == "cpu":
                for average, value in zip(averages, values, strict=True):
                    average.lerp_(value, weight.to(dtype))
            else:
                lerp_together(averages, values, weight.to(dtype))

    def count(self, finite: bool) -> None:
        """Count an update that the device has made if `finite`."""
        self.updates += finite

    def restore(self, average: dict[str, Tensor], updates: int) -> None:
        """Take the average of a checkpoint, and the number of its updates."""
        self.average, self.updates, self.updates_on_device = average, updates, None

    @contextlib.contextmanager
    def swap_in(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the model within the `with` block."""
        raw = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.average)
        try:
            yield
        finally:
            model.load_state_dict(raw)


def lerp_together(averages: list[Tensor], values: list[Tensor], weight: Tensor) -> None:
    """Add weight * (value - average) to each average, in three operations: on a GPU a kernel for each tensor would double
    the launches of a step.

    Args:
        averages: of one dtype and device.
        values: likewise, of the same shapes.
        weight: of shape () and the same dtype.
    """
    changes = torch._foreach_sub(values, averages)
    torch._foreach_mul_(changes, weight)
    torch._foreach_add_(averages, changes)


def _is_finite(value: Tensor) -> bool:
    return value.is_floating_point() and bool(torch.isfinite(value).all())
