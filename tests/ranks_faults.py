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
from drivetrain.distributed.sharded_tensor import get_local_state
from drivetrain.errors import DrivetrainError
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.evaluation.metrics import MetricAccumulator
from tests import tiny

TRAIN = "max_time: 1h"
Hook = Callable[[Any], Any]


def before(made: run.Run, step: int, action: Callable[[Any], Any], *, training: bool = True) -> None:
    """Do something once, in the forward pass of a step (1-based) or in the evaluation after it."""
    left = [action]

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        due = made.counters.step + training >= step
        if left and due and module.training == training:
            left.pop()(inputs)

    made.model.register_forward_pre_hook(hook)


def stop(made: run.Run) -> Hook:
    """What a signal does."""
    return lambda inputs: made.signals._handle(signal.SIGTERM, None)


def exhausted(*given: Any, **named: Any) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: tried 1 bytes")


def late(made: run.Run) -> Hook:
    """An hour passes on this process's clock."""

    def pass_by(inputs: Any) -> None:
        made.clock.started -= 3600

    return pass_by


def large(made: run.Run) -> None:
    """Memory for no more than five samples at a time."""

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        if module.training and len(inputs[0]) > 5:
            exhausted()

    made.model.register_forward_pre_hook(hook)


def in_backward(made: run.Run) -> None:
    """Memory runs out in the backward pass of step 5, with gradients of the last layers already on their way."""
    first, left = next(made.model.parameters()), [True]

    def fail(gradient: torch.Tensor) -> None:
        if left and made.counters.step == 4:
            left.clear()
            exhausted()

    first.register_hook(fail)


def half_updated(made: run.Run) -> None:
    """Memory runs out in the update of step 5, with one weight already changed."""
    plain, calls = made.optimizer.step, [0]

    def update(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            next(made.model.parameters()).data.add_(1.0)
            exhausted()
        return plain(*given, **named)

    made.optimizer.step = update  # type: ignore[method-assign]


def spoilt(made: run.Run) -> None:
    """A buffer is not finite any more after the update of step 5; the forward pass does not need it."""
    plain, calls = made.optimizer.step, [0]

    def update(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        done = plain(*given, **named)
        if calls[0] == 5:
            next(b for name, b in made.model.named_buffers() if "running_mean" in name).fill_(float("nan"))
        return done

    made.optimizer.step = update  # type: ignore[method-assign]


def misjudging(made: run.Run) -> None:
    """An evaluation that gets worse and worse, in this process's eyes."""
    plain, calls = MetricAccumulator.metrics, [0]

    def metrics(tally: Any, *given: Any) -> dict[str, float]:
        calls[0] += 1
        return {name: calls[0] if name.endswith("loss") else -calls[0] for name in plain(tally, *given)}

    MetricAccumulator.metrics = metrics  # type: ignore[method-assign]


def nan(inputs: Any) -> None:
    inputs[0].fill_(float("nan"))


def three_bad_steps(made: run.Run) -> None:
    """Samples of steps 5 to 7 that are not finite, in this process's shard."""
    for step in (5, 6, 7):
        before(made, step, nan)


STOPPING = "early_stopping: {metric: validation/loss, patience: 1}"
FAULTS: dict[str, tuple[str, Callable[[run.Run], None]]] = {
    "nothing": ("", lambda made: None),
    "time": ("", lambda made: before(made, 5, late(made))),
    "signal": ("", lambda made: before(made, 5, stop(made))),
    "signal in the evaluation": ("", lambda made: before(made, 4, stop(made), training=False)),
    "memory": ("", large),
    "memory in the backward pass": ("", in_backward),
    "half an update": ("", half_updated),
    "buffer in a save": ("", spoilt),
    "other metrics": (STOPPING, misjudging),
    "numbers": ("", three_bad_steps),
    "numbers, read late": ("", three_bad_steps),
    "micro-batch of 4": ("", lambda made: made.step.use_micro_batch(4)),
}
"""By name: more of the job's `train:`, and what is done to a process."""


def ended(folder: Path, fault: str, who: str) -> dict[str, Any]:
    """How a run ended here, if this process is one of those that something happens to."""
    rank = int(os.environ["DRIVETRAIN_RANK"])
    own = folder if rank == 0 else folder / "ranks" / str(rank)
    own.mkdir(parents=True, exist_ok=True)
    if rank:
        (own / "checkpoints").symlink_to(folder / "checkpoints")
    more, spoil = FAULTS[fault.removesuffix(", divided")]
    job = tiny.job(train=", ".join(filter(None, (TRAIN, more))))
    every = "3 steps" if fault == "half an update" else "1 steps"
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": every})})
    divides = fault.endswith("divided")
    made = tiny.assembled(own, job, settings={"fused_optimizer": True, "sharding": divides})
    assert made.is_divided == divides
    # As on a GPU. The leader, which saves after each step, then reads a result earlier than the others.
    made.step.state.prefers_device = fault.endswith("late")
    if str(rank) in who:
        spoil(made)
    metrics = MetricAccumulator.metrics
    try:
        reason, code = train.train(made), 0
    except DrivetrainError as error:
        reason, code = str(error), error.exit_code
    finally:
        MetricAccumulator.metrics = metrics  # type: ignore[method-assign]
    weights = sum(float(value.double().sum()) for value in get_local_state(made.model).values())
    return {
        "code": code,
        "reason": reason,
        "step": made.counters.step,
        "micro_batch": made.step.micro_batch,
        "weights": weights,
        "rollbacks": made.numerics.rollbacks,
        "skip": sorted(map(list, made.numerics.skipped_batches)),
    }


def main() -> None:
    ranks.COLLECTIVE_TIMEOUT = timedelta(seconds=60)
    vars(gradient_exchange)["BUCKET_BYTES"] = 512  # several for the tiny network
    folder, found = Path(sys.argv[1]), {}
    for case in sys.argv[2:]:
        fault, _, who = case.partition("@")
        found[case] = ended(folder / case, fault, who)
        (folder / f"{os.environ['DRIVETRAIN_RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
