"""Protects the program around an embedded training: its signal handlers, torch settings and random numbers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from drivetrain import optimizations
from drivetrain.errors import DeviceError
from drivetrain.hardware import device_check
from drivetrain.hardware.facts import Gpu, Hardware
from drivetrain.job import Job
from drivetrain.models import compiled_forward
from drivetrain.optimizations import Effect, Stage
from drivetrain.plan.plan import Plan, format_value
from drivetrain.system import library_variables, torch_settings
from drivetrain.system.signals import HANDLED_SIGNALS, SCHEDULER_SIGNALS, Signals


class HostSignals(Signals):
    """Signal handling that does not end the user's process: the second signal raises a plain KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received, self.depth = None, 0

    def _end_at_once(self, number: int) -> None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def install_handlers() -> Iterator[HostSignals]:
    """Install signal handlers for the training and restore the previous handlers, only in the main thread.

    Signals that the program ignores stay ignored, and its handlers of a scheduler's notices are kept.
    """
    signals = HostSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    replaced = {}
    for number in HANDLED_SIGNALS:
        handler = signal.getsignal(number)
        has_own_handler = handler is not signal.SIG_DFL and number in SCHEDULER_SIGNALS
        if handler is not signal.SIG_IGN and not has_own_handler:
            replaced[number] = handler
            signal.signal(number, signals._handle)
    try:
        yield signals
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextlib.contextmanager
def restore_state() -> Iterator[None]:
    """Restore torch's settings and all random states after the block, and undo the caller's autocast and autograd modes in it."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with (
        torch.random.fork_rng(devices),
        restore_torch_settings(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextlib.contextmanager
def restore_torch_settings() -> Iterator[None]:
    """Restore torch's settings after the block, but no random state."""
    threads = torch.get_num_threads()
    with torch_settings.keep_switches():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            compiled_forward.restore_settings()


def select_gpu(hardware: Hardware, job: Job) -> Hardware:
    """Select the hardware with the GPU of this process: `cuda:0`, in CUDA's own order.

    Raises:
        DeviceError: if the job names another GPU, or if this GPU cannot be used.
    """
    requested, gpu = job.limits.gpus, _find_first_gpu(hardware)
    if requested == "none" or gpu is None:
        selected = device_check.select_devices(hardware, requested)
    elif isinstance(requested, str) or list(requested) == [gpu.index]:
        selected = device_check.select_devices(hardware, [gpu.index])
    else:
        raise DeviceError(
            f"limits.gpus is {list(requested)}, but this process uses GPU {gpu.index} ({gpu.name})",
            "the first GPU that is visible to this process",
            "start the process with CUDA_VISIBLE_DEVICES=UUID; nvidia-smi -L lists the UUIDs",
        )
    device_check.check_build(selected)
    return selected


def _find_first_gpu(hardware: Hardware) -> Gpu | None:
    """Find the GPU that is `cuda:0`; None if there is only one or torch does not know it."""
    if len(hardware.gpus) < 2 or not torch.cuda.is_available():
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    return next((gpu for gpu in hardware.gpus if uuid and gpu.uuid.endswith(uuid)), None)


def keep_process_settings(plan: Plan, hardware: Hardware) -> Plan:
    """Return the plan for a running process: settings that need preloading keep their value, and their rows say so.

    Environment variables of later stages are set, because nothing has read them yet.
    """
    rows = []
    for optimization in optimizations.every():
        row = plan.decision(optimization.name)
        environment = optimization.environment(hardware, row.value)
        if optimization.stage is not Stage.PROCESS:
            os.environ.update(library_variables.merge_variables(os.environ, environment))
        elif optimization.read_preloaded and environment:
            value = optimization.read_preloaded()
            if value != row.value:
                reason = f"{format_value(row.value)} must be set before the process starts, as `drivetrain train` does"
                effect = str(Effect.EXACT) if value == optimization.off else row.effect
                rows.append(replace(row.learn(value, "process", reason), effect=effect))
    return plan.with_rows(rows)
