"""One process of a run in float64 that writes down what it trained on: python -m tests.ranks_driver FOLDER STEPS."""

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
from drivetrain.models.freeze import Unfreezing
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.assemble import Assembly
from drivetrain.training.step import Step
from drivetrain.training.step_result import BatchLoss
from tests import tiny

JOB = """
name: t
task: image-classification
data: {{train: none.npz{data}}}
train: {{epochs: 9, steps: {steps}, batch_size: 12, class_weights: balanced, ema: 0.9}}
"""


UNFREEZE = "unfreeze"
"""In place of keys for the data: the first layer is trained from the third epoch on."""


def assemble_run(folder: Path, steps: int, data: str = "") -> run.Run:
    """A small network without BatchNorm, in float64, on 62 samples: the last batch of an epoch is smaller."""
    unfreezing_epochs = {"1.weight": 2, "1.bias": 2} if data == UNFREEZE else {}
    data = "" if unfreezing_epochs else data
    job, machine = job_spec.check(parse(JOB.format(steps=steps, data=data), "t.yaml")), tiny.machine()
    dataset = tiny.dataset(62)
    dataset.train.inputs = dataset.train.inputs.double()  # type: ignore[attr-defined]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(dataset, network), plain=True)
    model = BuiltModel(
        network, "none", {}, Freeze(names=("1",) if unfreezing_epochs else ()), unfreezing=Unfreezing(unfreezing_epochs)
    )
    return Assembly(job, machine, plain_plan, folder, dataset, model, tiny.QuietSignals()).assemble()


def main() -> None:
    folder, steps, data = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rank = os.environ.get("DRIVETRAIN_RANK", "0")
    rank_folder = folder if rank == "0" else folder / "ranks" / rank
    rank_folder.mkdir(parents=True, exist_ok=True)
    training_run = assemble_run(rank_folder, steps, data)
    trained_ids: list[list[int]] = []
    training_run.step = RecordingStep(training_run.step, trained_ids)  # type: ignore[assignment]
    train.train(training_run)
    (rank_folder / "trained.json").write_text(json.dumps(trained_ids))


class RecordingStep:
    """A step that notes its samples."""

    def __init__(self, step: Step, trained_ids: list[list[int]]) -> None:
        self.step, self.trained_ids = step, trained_ids

    def compute_gradients(self, batch: Batch, share: BatchShare) -> BatchLoss:
        self.trained_ids.append(batch.ids.tolist())
        return self.step.compute_gradients(batch, share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
