"""One process of a run that dies after some step: python -m tests.parts_driver FOLDER LAST_STEP.

The process writes down what it trained on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.job.model import Freeze
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection
from drivetrain.models.build import BuiltModel
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.assemble import Assembly
from drivetrain.training.step import Step
from drivetrain.training.step_result import BatchLoss
from tests import tiny

SAMPLES, BATCH, EPOCHS = 242, 12, 2
"""The last batch of an epoch has two samples: too few to be cut."""
KILLED = 9
JOB = """
name: t
task: image-classification
data: {{train: none.npz, augment: {{mixup: {{alpha: 0.4, probability: 0.5}}}}}}
train: {{epochs: {epochs}, batch_size: {batch}, ema: 0.9, optimizer: {{name: adamw, lr: 0.01}}}}
checkpoint: {{every: 3 steps}}
"""


class RecordingStep:
    """A step that notes its samples, and ends the process after one of them."""

    def __init__(self, step: Step, training_run: run.Run, notes: Path, last: int) -> None:
        self.step, self.training_run, self.notes, self.last = step, training_run, notes, last

    def compute_gradients(self, batch: Batch | None, share: BatchShare) -> BatchLoss:
        assert batch is not None
        number = self.training_run.counters.step
        if number == self.last:
            os._exit(KILLED)
        with self.notes.open("a") as file:
            file.write(json.dumps({"step": number, "ids": batch.ids.tolist()}) + "\n")
        return self.step.compute_gradients(batch, share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


def network() -> nn.Module:
    """In float64, so that only the order of additions is left of what another number of processes changes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def main() -> None:
    folder, last = Path(sys.argv[1]), int(sys.argv[2])
    rank = os.environ.get("DRIVETRAIN_RANK", "0")
    rank_folder = folder if rank == "0" else folder / "ranks" / rank
    rank_folder.mkdir(parents=True, exist_ok=True)
    job, machine = (
        job_spec.check(parse(JOB.format(epochs=EPOCHS, batch=BATCH), "t.yaml")),
        tiny.machine(),
    )
    data, model = tiny.dataset(SAMPLES), network()
    data.train.inputs = data.train.inputs.double()  # type: ignore[attr-defined]
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(data, model), plain=True)
    training_run = Assembly(
        job, machine, plain_plan, rank_folder, data, BuiltModel(model, "none", {}, Freeze()), tiny.QuietSignals()
    ).assemble()
    training_run.step = RecordingStep(  # type: ignore[assignment]
        training_run.step, training_run, rank_folder / f"trained-{os.environ['ATTEMPT']}.jsonl", last
    )
    train.train(training_run)


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
