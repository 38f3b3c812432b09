"""One process of two that trains and notes its collectives: python -m tests.collectives_driver FOLDER CASE [CASE ...].

It writes into FOLDER/<rank>.json, by case, the collectives of each step: what is sent, its size in bytes, and `begun` or
`waited`, in order. Gradients are the large ones. A case is the keys of `train:`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.distributed.ranks import join_ranks
from drivetrain.job.model import Freeze
from drivetrain.models import inspection
from drivetrain.models.build import BuiltModel
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import train
from drivetrain.training.assemble import Assembly
from tests import tiny

Calls = list[list[Any]]
KINDS = ("all_reduce", "all_gather", "broadcast")


class Work:
    """Notes when somebody waits for a collective."""

    def __init__(self, work: Any, kind: str, size: int, calls: Calls) -> None:
        self.work, self.noted, self.calls = work, [kind, size, "waited"], calls

    def wait(self) -> Any:
        self.calls.append(self.noted)
        return self.work.wait()

    def get_future(self) -> Any:
        """The future that torch's own exchange waits for."""
        return self.work.get_future()


def make_recorder(kind: str, calls: Calls) -> Callable[..., Any]:
    """A collective of torch that notes its calls."""
    plain = getattr(torch.distributed, kind)

    def collective(first: Any, *arguments: Any, async_op: bool = False, **options: Any) -> Any:
        tensor: Tensor = arguments[0] if isinstance(first, list) else first
        size = tensor.numel() * tensor.element_size()
        calls.append([kind, size, "begun"])
        pending = Work(plain(first, *arguments, async_op=True, **options), kind, size, calls)
        return pending if async_op else pending.wait()

    return collective


def network(norm: bool) -> nn.Module:
    """Two layers with more gradients than anything else that travels in a step."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64) if norm else nn.Tanh(), nn.Linear(64, 3))


def steps_of(folder: Path, case: str) -> list[Calls]:
    """The collectives of each step of a run, from one update to the next."""
    rank = int(os.environ["DRIVETRAIN_RANK"])
    rank_folder = folder if rank == 0 else folder / "ranks" / str(rank)
    rank_folder.mkdir(parents=True, exist_ok=True)
    name, keys = case.split("|")
    job, machine, data = tiny.job(keys, epochs=2), tiny.machine(), tiny.dataset()
    model = network(name == "norm")
    run_plan = plan.resolve(job, machine, inspection.inspect_workload(data, model), plain=True)
    training_run = Assembly(
        job, machine, run_plan, rank_folder, data, BuiltModel(model, "none", {}, Freeze()), tiny.QuietSignals()
    ).assemble()
    calls: Calls = []
    steps: list[Calls] = []
    update = training_run.optimizer.step

    def record_step(*arguments: Any, **options: Any) -> Any:
        steps.append(list(calls))
        calls.clear()
        return update(*arguments, **options)

    training_run.optimizer.step = record_step  # type: ignore[method-assign]
    plain = {kind: getattr(torch.distributed, kind) for kind in KINDS}
    for kind in KINDS:
        setattr(torch.distributed, kind, make_recorder(kind, calls))
    try:
        train.train(training_run)
    finally:
        for kind, function in plain.items():
            setattr(torch.distributed, kind, function)
    return steps


def main() -> None:
    folder = Path(sys.argv[1])
    steps_by_case = {case: steps_of(folder / str(index), case) for index, case in enumerate(sys.argv[2:])}
    (folder / f"{os.environ['DRIVETRAIN_RANK']}.json").write_text(json.dumps(steps_by_case))
    join_ranks(torch.device("cpu")).leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
