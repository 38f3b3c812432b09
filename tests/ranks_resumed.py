"""One process of a run that is killed with all others and resumed: python -m tests.ranks_resumed FOLDER STEPS KILL WAY.

It writes all weights after the last step into FOLDER/<rank>.npy. KILL is the step before which it dies; 0 for
none. WAY is `kept` for the layout of buckets, or `rebuilt` as by DistributedDataParallel without a rehearsal.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from torch import nn

from drivetrain.distributed import gradient_exchange
from drivetrain.job.model import Freeze
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection
from drivetrain.models.build import BuiltModel
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import train
from drivetrain.training.assemble import Assembly
from tests import tiny

JOB = """
name: t
task: image-classification
data: {{train: none.npz}}
train: {{epochs: 9, steps: {steps}, batch_size: 12}}
checkpoint: {{every: 4 steps}}
"""
KILOBYTES = 8


def main() -> None:
    folder, steps, kill, way = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    vars(gradient_exchange)["CPU_BUCKET_MEGABYTES"] = KILOBYTES / 1024
    if way == "rebuilt":
        gradient_exchange.GradientExchange._rehearse = Mock()  # type: ignore[method-assign]
    rank = os.environ["DRIVETRAIN_RANK"]
    rank_folder = folder if rank == "0" else folder / "ranks" / rank
    rank_folder.mkdir(parents=True, exist_ok=True)
    job, machine, data = job_spec.check(parse(JOB.format(steps=steps), "t.yaml")), tiny.machine(), tiny.dataset()
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(64, 64), nn.Tanh())]
    network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 3))
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(data, network), plain=True)
    training_run = Assembly(
        job, machine, plain_plan, rank_folder, data, BuiltModel(network, "none", {}, Freeze()), tiny.QuietSignals()
    ).assemble()

    def die(module: nn.Module, inputs: Any) -> None:
        if kill and module.training and training_run.counters.step + 1 == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    training_run.model.register_forward_pre_hook(die)
    train.train(training_run)
    np.save(
        folder / f"{rank}.npy",
        torch.cat([value.flatten() for value in training_run.model.state_dict().values()]).numpy(),
    )


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
