"""The tiny job, trained after a test has hooked something into it: bad numbers, outliers, a lack of memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.saver import Saver
from tests import tiny


class SilentProgress:
    """Progress that shows nothing."""

    def report_step(self, training_run: run.Run, step: int, loss: float) -> None: ...

    def report_evaluation(self, training_run: run.Run, best: bool) -> None: ...


def fit(folder: Path, spoil: Callable[[run.Run], None], train: str = "", *, epochs: int = 3) -> tuple[run.Run, str]:
    """Train the tiny job after `spoil` has hooked something in."""
    training_run = tiny.assemble_run(folder, tiny.job(train=train, epochs=epochs))
    training_run.metrics = MetricsLog(folder)
    saver = Saver(training_run)
    saver.save_final()
    spoil(training_run)
    try:
        return training_run, loop.fit(training_run, saver, SilentProgress())  # type: ignore[arg-type]
    finally:
        training_run.metrics.close()


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def at_steps(*steps: int, action: Callable[[run.Run], None]) -> Callable[[run.Run], None]:
    """Do something before the forward pass of these steps (1-based), once each."""
    remaining_steps = set(steps)

    def spoil(training_run: run.Run) -> None:
        def hook(module: torch.nn.Module, inputs: Any) -> Any:
            number = training_run.counters.step + 1
            if module.training and number in remaining_steps:
                remaining_steps.discard(number)
                return action(training_run)
            return None

        training_run.model.register_forward_pre_hook(hook)

    return spoil


def nan_input(training_run: run.Run) -> Any:
    return (torch.full((16, 1, 8, 8), float("nan")),)


def nan_gradient(training_run: run.Run) -> None:
    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return gradient * float("nan")

    handle = next(training_run.model.parameters()).register_hook(spoil)


ROLLBACK = "loss_spike: rollback, schedule: constant"


def add_outliers(*batches: tuple[int, int]) -> Callable[[run.Run], None]:
    """Samples far away from all others in these batches, every time that they come."""

    def spoil(training_run: run.Run) -> None:
        def hook(module: torch.nn.Module, inputs: Any) -> Any:
            position = (training_run.counters.epoch, training_run.counters.batch)
            return (-inputs[0] * 50,) if module.training and position in batches else None

        training_run.model.register_forward_pre_hook(hook)
        for module in training_run.model.modules():  # without its statistics a batch is as large as it is
            if isinstance(module, torch.nn.BatchNorm2d):
                training_run.kept_in_eval_mode.append(module)

    return spoil


def limit_samples(limit: int) -> Callable[[run.Run], None]:
    """An allocator that refuses more than `limit` samples at a time."""

    def spoil(training_run: run.Run) -> None:
        def hook(module: torch.nn.Module, inputs: Any) -> None:
            if module.training and len(inputs[0]) > limit:
                raise RuntimeError(
                    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: tried 1 bytes"
                )

        training_run.model.register_forward_pre_hook(hook)

    return spoil


def run_out_of_memory() -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: tried 1 bytes")
