"""Losses of a user and their training, alone or as one of several processes: python -m tests.border_losses FOLDER CASE ...

A case is `loss` or `loss/3`, with the size of micro-batches. The weights, the losses by step and those of the validation,
or why there are none, are written into FOLDER/<rank>.json.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.data.load_data import load
from drivetrain.distributed.ranks import join_ranks
from drivetrain.errors import DrivetrainError
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.assemble import Assembly
from tests import own_job, tiny

WEIGHTS = torch.tensor([0.1, 1.0, 10.0])
BATCH, RATE = 16, 0.05


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean over samples that are not of the first class, most of all."""
    return (F.cross_entropy(outputs, targets, reduction="none") * (targets > 0)).sum() / (targets > 0).sum()


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value for each sample."""
    terms = F.cross_entropy(outputs, targets, reduction="none")
    return terms * (1 - torch.exp(-terms)) ** 2


LOSSES: dict[str, Any] = {
    "mean": F.multi_margin_loss,
    "each": focal,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighted": nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
    "function": partial(F.cross_entropy, weight=WEIGHTS),
    "ignoring": nn.CrossEntropyLoss(ignore_index=0),
    "counted": masked,
    "unknown": partial(lambda outputs, targets, weight: F.cross_entropy(outputs, targets, weight), weight=WEIGHTS),
    "beside": lambda outputs, targets: F.cross_entropy(outputs - outputs.mean(dim=0), targets, reduction="none"),
}
DATA = """
import torch

def points(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator)
    return x, (x.sum(dim=1) > 1.5).long() + (x.sum(dim=1) > 3)

def load():
    return points(98, 0), points(71, 1)
"""
LOSS = """
from tests import border_losses

def loss(kind):
    return border_losses.LOSSES[kind]

def labelled(targets):
    return targets > 0
"""


def assemble_run(folder: Path, case: str) -> run.Run:
    """The last batch of an epoch has two samples: too few for parts of two processes."""
    kind, _, size = case.partition("/")
    counts = ", weight_of: labelled" if kind == "counted" else ""
    folder.mkdir(parents=True, exist_ok=True)
    job = own_job.job(
        folder,
        {"my_data.py": DATA, "my_loss.py": LOSS},
        train=f"clip_norm: null, schedule: constant, optimizer: {{name: sgd, lr: {RATE if kind != 'sum' else RATE / BATCH}, momentum: 0, weight_decay: 0}}, "
        f"loss: {{file: my_loss.py, arguments: {{kind: {kind}}}{counts}}}",
    )
    job = job.model_copy(update={"optimize": {**job.optimize, "micro_batch": int(size)} if size else job.optimize})
    data, machine = load(job), tiny.machine()
    network = build(job, data)
    facts = inspection.inspect_workload(data, network.module)
    run_plan = plan.resolve(job, machine, facts).with_only(["micro_batch"])
    return Assembly(job, machine, run_plan, folder, data, network, tiny.QuietSignals()).assemble()


def weights(model: nn.Module) -> list[float]:
    """All of them."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def train_case(folder: Path, case: str) -> dict[str, Any]:
    """What the runtime makes of a case."""
    try:
        training_run = assemble_run(folder, case)
    except DrivetrainError as error:
        return {"refused": str(error)}
    assert (training_run.step.forward.micro_batch or 0) == int(case.partition("/")[2] or 0)
    train.train(training_run)
    rows = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if training_run.ranks.is_rank0
        else []
    )
    return {key: [row[key] for row in rows if key in row] for key in ("train/loss", "validation/loss")} | {
        "weights": weights(training_run.model)
    }


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["DRIVETRAIN_RANK"]
    outcomes = {case: train_case(folder / rank / case.replace("/", "-"), case) for case in sys.argv[2:]}
    (folder / f"{rank}.json").write_text(json.dumps(outcomes))
    join_ranks(torch.device("cpu")).leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
