"""A tiny job that trains in milliseconds: 64 learnable images of 8x8 in memory, a small network, one step function."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from drivetrain.data.dataset import Dataset, Head, Inputs, Targets
from drivetrain.data.load_data import load
from drivetrain.data.stateless_random import Ids
from drivetrain.hardware import facts
from drivetrain.hardware.detect import detect
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection
from drivetrain.models.build import BuiltModel, build
from drivetrain.optimizations import Value
from drivetrain.plan import plan
from drivetrain.system.signals import Signals
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import batch_inputs, run
from drivetrain.training.assemble import Assembly
from drivetrain.training.saver import Saver

TEXT = """
name: tiny
task: image-classification
data: {{train: x}}
model: {{name: small-cnn, width: 4{model}}}
train: {{epochs: {epochs}, batch_size: 16{train}}}
"""


@dataclass
class Arrays:
    """A split of arrays in memory."""

    inputs: torch.Tensor
    labels: torch.Tensor
    targets: Targets = field(init=False)

    def __post_init__(self) -> None:
        self.targets = {"": self.labels}

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, ids: Ids) -> Inputs:
        return (self.inputs[torch.from_numpy(ids)],)

    def title(self, index: int) -> str:
        return f"sample {index}"


def job(train: str = "", model: str = "", optimize: str = "", *, epochs: int = 3, sections: str = "") -> Job:
    text = TEXT.format(epochs=epochs, train=train and f", {train}", model=model and f", {model}")
    return job_spec.check(parse(f"{text}optimize: {{{optimize}}}\n{sections}", "tiny.yaml"))


def dataset(samples: int = 64, classes: int = 3) -> Dataset:
    labels = np.arange(samples) % classes
    images = np.random.default_rng(0).normal(size=(samples, 1, 8, 8)).astype(np.float32) * 0.3
    images[np.arange(samples), 0, labels] += 1.0
    arrays = Arrays(torch.from_numpy(images), torch.from_numpy(labels))
    head = Head("", classes=tuple(f"class {i}" for i in range(classes)))
    return Dataset(arrays, arrays, {"": head}, {"channels": 1, "image_size": 8})


class QuietSignals(Signals):
    """Signals that leave the test runner's handlers alone."""

    def __init__(self) -> None:
        self.received, self.depth = None, 0


def machine() -> facts.Hardware:
    return detect(Path())


def assemble_run(folder: Path, spec: Job, *, plain: bool = True, settings: dict[str, Value] | None = None) -> run.Run:
    """A run of the tiny job: everything off, or by plan, with some values set."""
    hardware, data = machine(), dataset()
    network: BuiltModel = build(spec, data)
    facts = inspection.inspect_workload(data, network.module)
    base_plan = plan.resolve(spec, hardware, facts, plain=plain)
    rows = [
        plan.Decision(d.name, settings[d.name], "job", "for the test", d.effect) if d.name in (settings or {}) else d
        for d in base_plan.decisions
    ]
    final = plan.Plan(tuple(rows), base_plan.image, base_plan.image_reason, base_plan.profile)
    return Assembly(spec, hardware, final, folder, data, network, QuietSignals()).assemble()


def make_saver(folder: Path) -> Saver:
    """Make the saver of a run of the tiny job, with a log of metrics in its folder."""
    training_run = assemble_run(folder, job())
    training_run.metrics = MetricsLog(folder)
    return Saver(training_run)


def assemble_plain_run(spec: Job, folder: Path) -> run.Run:
    """A run of any job on its own data, with every optimization off."""
    data = load(spec)
    network, hardware = build(spec, data), machine()
    plain_plan = plan.resolve(spec, hardware, inspection.inspect_workload(data, network.module), plain=True)
    return Assembly(spec, hardware, plain_plan, folder, data, network, QuietSignals()).assemble()


def losses(training_run: run.Run, steps: int) -> list[float]:
    """The losses of the first steps."""
    training_run.train_mode()
    values: list[float] = []
    while len(values) < steps:
        for number, batch in enumerate(training_run.batches.epoch(training_run.counters.epoch)):
            training_run.rates.set(training_run.counters, training_run.best_metric.factor())
            values.append(
                training_run.step(
                    batch_inputs.preprocess(training_run, batch, 0),
                    batch_inputs.share_batch(training_run, training_run.batches.size(number)),
                ).loss
            )
            training_run.counters.step += 1
        training_run.counters.epoch += 1
    return values[:steps]
