"""Protects the host program of an embedded training: its signal handlers, torch settings and random numbers."""

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

from runtime import optimizations
from runtime.errors import DeviceError
from runtime.hardware import device_check
from runtime.hardware.facts import Gpu, Hardware
from runtime.job import Job
from runtime.optimizations import Effect, Stage
from runtime.plan.plan import Plan, written
from runtime.system import library_variables, torch_settings
from runtime.system.signals import SCHEDULED, WATCHED, Signals
from runtime.training import compiled_forward


class HostSignals(Signals):
    """Signal handling that does not end the process: the second signal is a plain KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received, self.depth = None, 0

    def _end_at_once(self, number: int) -> None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening() -> Iterator[HostSignals]:
    """Install signal handlers for the training, and restore the previous ones; only in the main thread.

    What the program ignores stays ignored, and what it does on a scheduler's notice stays as well.
    """
    signals = HostSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    replaced = {
        number: handler
        for number in WATCHED
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
        and (handler is signal.SIG_DFL or number not in SCHEDULED)
    }
    for number in replaced:
        signal.signal(number, signals._handle)
    try:
        yield signals
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """Restore torch's settings and random state afterwards; autocast and the modes of autograd around it do not hold."""
    drawn = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices), settings_as_found(), _usual_modes():
        try:
            yield
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


@contextlib.contextmanager
def _usual_modes() -> Iterator[None]:
    """A block with gradients and without autocast, whatever the program has around it."""
    with contextlib.ExitStack() as modes:
        for mode in (torch.inference_mode(False), torch.enable_grad()):
            modes.enter_context(mode)
        for kind in ("cpu", "cuda"):
            modes.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def settings_as_found() -> Iterator[None]:
    """Restore torch's settings afterwards, but no random state."""
    threads = torch.get_num_threads()
    with torch_settings.kept():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            compiled_forward.undo()


def machine(here: Hardware, job: Job) -> Hardware:
    """The hardware with the GPU that this process computes on: `cuda:0`, in CUDA's own order.

    Raises:
        DeviceError: if the job names another GPU, or this one cannot be used.
    """
    wanted, first = job.limits.gpus, _first(here)
    if wanted == "none" or first is None:
        found = device_check.select_devices(here, wanted)
    elif isinstance(wanted, str) or list(wanted) == [first.index]:
        found = device_check.select_devices(here, [first.index])
    else:
        raise DeviceError(
            f"limits.gpus is {list(wanted)}, but this process uses GPU {first.index} ({first.name})",
            "the first GPU that is visible to this process",
            "start it with another one: CUDA_VISIBLE_DEVICES=UUID, which nvidia-smi -L lists",
        )
    device_check.check_build(found)
    return found


def _first(here: Hardware) -> Gpu | None:
    """The GPU that is `cuda:0`; None if there is only one, or torch cannot tell."""
    if len(here.gpus) < 2 or not torch.cuda.is_available():
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    return next((gpu for gpu in here.gpus if uuid and gpu.uuid.endswith(uuid)), None)


def as_started(plan: Plan, hardware: Hardware) -> Plan:
    """The plan for a running process: what would have to be preloaded stays as it is, and its row says so.

    Environment variables of later stages are set, since nothing has read them yet.
    """
    rows = []
    for optimization in optimizations.every():
        row = plan.row(optimization.name)
        environment = optimization.environment(hardware, row.value)
        if optimization.stage is not Stage.PROCESS:
            os.environ.update(library_variables.merge_variables(os.environ, environment))
        elif optimization.preloaded and environment and (now := optimization.preloaded()) != row.value:
            why = f"{written(row.value)} must be set before the process starts, which `drivetrain train` does"
            effect = str(Effect.EXACT) if now == optimization.off else row.effect
            rows.append(replace(row.learned(now, "process", why), effect=effect))
    return plan.with_rows(rows)
