"""One process of several that trains small jobs one after another: python -m tests.ranks_cases FOLDER CASE [CASE ...].

It writes the losses of each into FOLDER/<rank>.json. One start of torch serves all cases.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.data.dataset import Batch
from drivetrain.data.load_data import load
from drivetrain.distributed.ranks import join_ranks
from drivetrain.errors import DrivetrainError
from drivetrain.job.model import Freeze
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.models.build import BuiltModel, build
from drivetrain.optimizations import Value
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import run
from drivetrain.training.assemble import Assembly
from tests import ranks_start, tiny
from tests.paths import ROOT

STEPS = 8
BATCH = 16
Losses = list[float]


class Convolutions(nn.Module):
    """Two convolutions, with BatchNorm or without, a four-dimensional buffer, a weight that lies transposed, and one without
    a dimension.
    """

    def __init__(self, normed: bool) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(8), nn.BatchNorm2d(8)] if normed else [nn.Identity(), nn.Identity()]
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            norms[0],
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, stride=2),
            norms[1],
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 3)
        self.head.weight = nn.Parameter(torch.randn(8, 3).t())
        self.factor = nn.Parameter(torch.ones(()))
        self.register_buffer("scale", torch.ones(1, 8, 4, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.copy_(self.scale.clamp(max=0.9))
        return self.head((self.body(images) * self.scale * self.factor).mean(dim=(2, 3)))


def assemble_convolutional(folder: Path, name: str) -> run.Run:
    """A run in float64 of 64 images in batches of 16; the name lists what is on: norm, channels_last, fused, halves, sgd."""
    options = name.split("+")
    kind = "sgd" if "sgd" in options else "adamw"
    job = tiny.job(f"ema: 0.9, clip_norm: 1.0, optimizer: {{name: {kind}, lr: 0.03}}").model_copy(update={"name": name})
    data, machine = tiny.dataset(), tiny.machine()
    data.train.inputs = data.train.inputs.double()  # type: ignore[attr-defined]
    torch.manual_seed(0)
    network = Convolutions("norm" in options).double()
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(data, network), plain=True)
    settings: dict[str, Value] = {
        "channels_last": "channels_last" in options,
        "fused_optimizer": "fused" in options,
    }
    if "unseeded" in options:
        for parameter in network.parameters():
            parameter.data.add_(int(os.environ["DRIVETRAIN_RANK"]))
    if "unlike" in options:
        data.train.targets[""].add_(int(os.environ["DRIVETRAIN_RANK"])).remainder_(3)
    if "larger" in options and os.environ["DRIVETRAIN_RANK"] == "1":
        network.head = nn.Linear(8, 4).double()
    training_run = Assembly(
        job,
        machine,
        plain_plan.with_values(settings),
        folder,
        data,
        BuiltModel(network, "none", {}, Freeze()),
        tiny.QuietSignals(),
    ).assemble()
    if "halves" in options:
        training_run.step.use_micro_batch(BATCH // 2)
    if "threes" in options:
        training_run.step.use_micro_batch(3)
    return training_run


def convert_to_double(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What goes into a network in float64."""
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def halve_batch(batch: Batch, size: int) -> list[Batch]:
    """The parts that each of two processes gets."""
    half = len(batch) // 2
    return [batch.between(0, half), batch.between(half, len(batch))]


def assemble_task(folder: Path, name: str) -> run.Run:
    """A run of one of the tasks, whose files lie in a folder beside; the name lists what is on, by the decision.

    In float64, since a network with BatchNorm over a few samples magnifies rounding; but not where another format is on.
    """
    job_name, *options = name.split("+")
    overrides = ["data.arguments.samples=96"] if job_name == "own" else ["model.dropout=0"]
    job = job_spec.load(
        ROOT / "jobs/own-model.yaml" if job_name == "own" else folder.parent / "data" / job_name / "job.yaml", overrides
    )
    data, machine = load(job), tiny.machine()
    network = build(job, data)
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(data, network.module), plain=True)
    if "precision" not in name:
        network.module.double().register_forward_pre_hook(convert_to_double)
    settings = dict(word.split("=") for word in options if "=" in word)
    decisions = [
        replace(row, value={"true": True}.get(value := settings.get(row.name, ""), value) or row.value)
        for row in plain_plan.decisions
    ]
    training_run = Assembly(
        job, machine, replace(plain_plan, decisions=tuple(decisions)), folder, data, network, tiny.QuietSignals()
    ).assemble()
    if "halves" in options:
        training_run.step.forward.splitter = halve_batch
    return training_run


KINDS: dict[str, Callable[[Path, str], run.Run]] = {"convolutional": assemble_convolutional, "task": assemble_task}


def train_case(folder: Path, case: str) -> Losses | str:
    """Losses of a case, `kind/name`, by step, and at last the sum of all its weights; or why there are none."""
    kind, name = case.split("/")
    try:
        training_run = KINDS[kind](folder, name)
    except DrivetrainError as error:
        return str(error)
    losses = tiny.losses(training_run, STEPS)
    return [*losses, sum(float(p.detach().double().sum()) for p in training_run.model.parameters())]


def run_cases(
    folder: Path, cases: Sequence[str], count: int, module: str = "ranks_cases", seconds: float = 300
) -> list[dict[str, Any]]:
    """What each of so many processes found, by case: the losses, or what another module of ours writes down."""
    ranks_start.run_ranks([sys.executable, "-m", f"tests.{module}", str(folder), *cases], count, seconds)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def main() -> None:
    folder = Path(sys.argv[1])
    outcomes = {case: train_case(folder, case) for case in sys.argv[2:]}
    (folder / f"{os.environ['DRIVETRAIN_RANK']}.json").write_text(json.dumps(outcomes))
    join_ranks(torch.device("cpu")).leave()
    ranks = join_ranks(torch.device("cpu"))
    ranks.barrier()  # a process that ended at once would cut connections that the others are still making
    ranks.leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
