"""Something happens to one of several processes that train: python -m tests.ranks_faults FOLDER FAULT [FAULT ...].

Each fault is a whole run of a tiny job; how it ended in this process is written into FOLDER/<rank>.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from drivetrain.distributed import gradient_exchange, ranks
from drivetrain.errors import DrivetrainError
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.evaluation.metrics import MetricAccumulator
from tests import tiny

TRAIN = "max_time: 1h"
Hook = Callable[[Any], Any]


def act_at_step(training_run: run.Run, step: int, action: Callable[[Any], Any], *, training: bool = True) -> None:
    """Do something once, in the forward pass of a step (1-based) or in the evaluation after it."""
    pending = [action]

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        due = training_run.counters.step + training >= step
        if pending and due and module.training == training:
            pending.pop()(inputs)

    training_run.model.register_forward_pre_hook(hook)


def stop(training_run: run.Run) -> Hook:
    """What a signal does."""
    return lambda inputs: training_run.signals._handle(signal.SIGTERM, None)


def exhaust_memory(*arguments: Any, **options: Any) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: tried 1 bytes")


def delay_clock(training_run: run.Run) -> Hook:
    """An hour passes on this process's clock."""

    def pass_by(inputs: Any) -> None:
        training_run.clock.started -= 3600

    return pass_by


def limit_memory(training_run: run.Run) -> None:
    """Memory for no more than five samples at a time."""

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        if module.training and len(inputs[0]) > 5:
            exhaust_memory()

    training_run.model.register_forward_pre_hook(hook)


def exhaust_in_backward(training_run: run.Run) -> None:
    """Memory runs out in the backward pass of step 5, with gradients of the last layers already on their way."""
    parameter, armed = next(training_run.model.parameters()), [True]

    def fail(gradient: torch.Tensor) -> None:
        if armed and training_run.counters.step == 4:
            armed.clear()
            exhaust_memory()

    parameter.register_hook(fail)


def half_update(training_run: run.Run) -> None:
    """Memory runs out in the update of step 5, with one weight already changed."""
    plain_step, calls = training_run.optimizer.step, [0]

    def update(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            next(training_run.model.parameters()).data.add_(1.0)
            exhaust_memory()
        return plain_step(*arguments, **options)

    training_run.optimizer.step = update  # type: ignore[method-assign]


def spoil_buffer(training_run: run.Run) -> None:
    """A buffer is not finite any more after the update of step 5; the forward pass does not need it."""
    plain_step, calls = training_run.optimizer.step, [0]

    def update(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        outcome = plain_step(*arguments, **options)
        if calls[0] == 5:
            next(b for name, b in training_run.model.named_buffers() if "running_mean" in name).fill_(float("nan"))
        return outcome

    training_run.optimizer.step = update  # type: ignore[method-assign]


def misjudge(training_run: run.Run) -> None:
    """An evaluation that gets worse and worse, in this process's eyes."""
    plain_metrics, calls = MetricAccumulator.metrics, [0]

    def metrics(tally: Any, *arguments: Any) -> dict[str, float]:
        calls[0] += 1
        return {name: calls[0] if name.endswith("loss") else -calls[0] for name in plain_metrics(tally, *arguments)}

    MetricAccumulator.metrics = metrics  # type: ignore[assignment, method-assign]


def nan(inputs: Any) -> None:
    inputs[0].fill_(float("nan"))


def three_bad_steps(training_run: run.Run) -> None:
    """Samples of steps 5 to 7 that are not finite, in this process's shard."""
    for step in (5, 6, 7):
        act_at_step(training_run, step, nan)


STOPPING = "early_stopping: {metric: validation/loss, patience: 1}"
FAULTS: dict[str, tuple[str, Callable[[run.Run], None]]] = {
    "nothing": ("", lambda training_run: None),
    "time": ("", lambda training_run: act_at_step(training_run, 5, delay_clock(training_run))),
    "signal": ("", lambda training_run: act_at_step(training_run, 5, stop(training_run))),
    "signal in the evaluation": (
        "",
        lambda training_run: act_at_step(training_run, 4, stop(training_run), training=False),
    ),
    "memory": ("", limit_memory),
    "memory in the backward pass": ("", exhaust_in_backward),
    "half an update": ("", half_update),
    "buffer in a save": ("", spoil_buffer),
    "other metrics": (STOPPING, misjudge),
    "numbers": ("", three_bad_steps),
    "numbers, read late": ("", three_bad_steps),
    "micro-batch of 4": ("", lambda training_run: training_run.step.use_micro_batch(4)),
}
"""By name: more of the job's `train:`, and what is done to a process."""


def run_fault(folder: Path, fault: str, who: str) -> dict[str, Any]:
    """How a run ended here, if this process is one of those that something happens to."""
    rank = int(os.environ["DRIVETRAIN_RANK"])
    rank_folder = folder if rank == 0 else folder / "ranks" / str(rank)
    rank_folder.mkdir(parents=True, exist_ok=True)
    if rank:
        (rank_folder / "checkpoints").symlink_to(folder / "checkpoints")
    train_keys, spoil = FAULTS[fault]
    job = tiny.job(train=", ".join(filter(None, (TRAIN, train_keys))))
    every = "3 steps" if fault == "half an update" else "1 steps"
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": every})})
    training_run = tiny.assemble_run(rank_folder, job, settings={"fused_optimizer": True})
    # As on a GPU. The leader, which saves after each step, then reads a result earlier than the others.
    training_run.step.updater.prefers_device = fault.endswith("late")
    if str(rank) in who:
        spoil(training_run)
    metrics = MetricAccumulator.metrics
    try:
        reason, code = train.train(training_run), 0
    except DrivetrainError as error:
        reason, code = str(error), error.exit_code
    finally:
        MetricAccumulator.metrics = metrics  # type: ignore[method-assign]
    weights = sum(float(value.double().sum()) for value in training_run.model.state_dict().values())
    return {
        "code": code,
        "reason": reason,
        "step": training_run.counters.step,
        "micro_batch": training_run.step.forward.micro_batch,
        "weights": weights,
        "rollbacks": training_run.numerics.rollbacks,
        "skip": sorted(map(list, training_run.numerics.skipped_batches)),
    }


def main() -> None:
    ranks.COLLECTIVE_TIMEOUT = timedelta(seconds=60)
    vars(gradient_exchange)["CPU_BUCKET_MEGABYTES"] = 512 / 2**20  # several for the tiny network
    folder, endings = Path(sys.argv[1]), {}
    for case in sys.argv[2:]:
        fault, _, who = case.partition("@")
        endings[case] = run_fault(folder / case, fault, who)
        (folder / f"{os.environ['DRIVETRAIN_RANK']}.json").write_text(json.dumps(endings))


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
