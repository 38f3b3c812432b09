"""Jobs with a frozen body, assembled with and without the cache of its features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import Value
from drivetrain.plan import plan
from drivetrain.training import batch_inputs, run
from drivetrain.training.assemble import Assembly
from drivetrain.training.updater import Updater
from tests import reports, tiny

FROZEN = "freeze: {embeddings: true, layers: 1}}"
ENCODER = f"{reports.ENCODER[:-1]}, dropout: 0.1, "
IMAGES = """
name: cached
task: image-classification
data: {{train: a.npz, validation: 0.25, image_size: 16, pixel_range: [-4, 6]}}
model: {model}
train: {{epochs: 2, batch_size: 16}}
"""
NETWORKS = {
    "encoder, one layer of two": (f"{ENCODER}{FROZEN}", "the embeddings and 1 of 2 layers"),
    "encoder, first token": (f"{ENCODER}pooling: cls, {FROZEN}", "the embeddings and 1 of 2 layers"),
    "whole encoder": (ENCODER + "freeze: {names: [encoder]}}", "the whole encoder"),
    "distilbert": ("distilbert", "the embeddings and 1 of 2 layers"),
    "roberta": ("roberta", "the embeddings and 1 of 2 layers"),
    "small-cnn": (
        "{name: small-cnn, width: 4, freeze: {names: [features.0, features.1, features.3]}}",
        "4 of 22 layers",
    ),
    "resnet18": ("{name: resnet18, width: 4, freeze: {names: [stem, stages.0, stages.1]}}", "5 of 10 parts"),
    "resnet18, its end alone": (
        "{name: resnet18, width: 4, dropout: 0.2, freeze: {names: [stem, stages]}}",
        "10 of 10 parts",
    ),
}


def job(folder: Path, name: str, extra_keys: str = "") -> Job:
    model = NETWORKS[name][0]
    if not model.startswith("{name: small") and not model.startswith("{name: resnet"):
        reports.write_reports(folder)
        if not model.startswith("{"):
            saved = reports.save_encoder(folder, model)
            model = f"{{source: transformers, name: {saved}, {FROZEN}"
        return reports.job(folder, model=model, data=", max_length: 40")
    images, labels = torch.randn(80, 3, 16, 16).add(1).numpy(), torch.arange(80).remainder(3).numpy()
    np.savez(folder / "a.npz", images=images, labels=labels)
    (folder / "job.yaml").write_text(IMAGES.format(model=model) + extra_keys)
    return job_spec.load(folder / "job.yaml")


def assemble_run(folder: Path, job_of_run: Job, on: bool, settings: dict[str, Value] | None = None) -> run.Run:
    """A run with everything off but, perhaps, the cache."""
    machine, data = tiny.machine(), load(job_of_run)
    network = build(job_of_run, data)
    plain = plan.resolve(job_of_run, machine, inspection.inspect_workload(data, network.module), plain=True)
    values = (settings or {}) | {"feature_cache": on}
    return Assembly(
        job_of_run, machine, plain.with_values(values), folder, data, network, tiny.QuietSignals()
    ).assemble()


class Recorder(torch.optim.SGD):
    """Keeps the gradients and changes nothing."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.gradients = torch.cat(
            [p.grad.flatten() for g in self.param_groups for p in g["params"] if p.grad is not None]
        )


def compute_gradient(trained_run: run.Run, epoch: int = 0) -> torch.Tensor:
    trained_run.train_mode()
    recorder = Recorder([p for p in trained_run.model.parameters() if p.requires_grad], lr=1.0)
    trained_run.step.updater = Updater(trained_run.model, recorder, trained_run.job.train.clip_norm)
    batch = next(iter(trained_run.batches.epoch(epoch)))
    trained_run.step(
        batch_inputs.prepare(trained_run, batch, epoch),
        batch_inputs.share_batch(trained_run),
    )
    return recorder.gradients
