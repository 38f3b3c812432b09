"""Rows: the workloads of the table: a job each, on generated data."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

IMAGES = """
task: image-classification
data: {{train: {data}/images, validation: 0.1, image_size: {size}}}
model: {{{model}}}
"""
TEXTS = """
task: text-classification
data:
  train: {data}/reports.csv
  validation: 0.1
  text: descripcion
  labels: {{{labels}}}
  max_length: {size}
model: {{{model}}}
"""
SERIES = """
task: series-classification
data:
  train: {data}/train.csv
  validation: 0.1
  time: time
  group: machine
  features: [vibration_x, vibration_y, temperature, pressure, current, flow]
  label: regime
  window: {size}
  stride: 4
model: {{{model}}}
"""
TABLE = """
task: tabular-classification
data: {{train: {data}/train.parquet, validation: 0.01, target: fails, ignore: [id, hours_left], categorical: [region]}}
model: {{{model}}}
"""
TRAIN = """
name: {name}
train:
  epochs: {epochs}
  batch_size: {batch}
  optimizer: {{name: adamw, lr: 1e-3, weight_decay: 0.0}}
  schedule: constant
"""


@dataclass(frozen=True)
class Row:
    """One workload."""

    name: str
    title: str
    spec: str
    kind: str
    """What jobs/samples calls the data."""
    samples: int
    """Samples that are generated; in a smoke run `smoke_samples`."""
    smoke_samples: int
    size: int
    """Pixels, tokens at most, or rows of a window."""
    batch: int
    epochs: int
    """Of a whole run from the command to the finished model."""
    long_epochs: int
    """Epochs of a run long enough that the plan is worth measuring: about 20 minutes on two cores."""
    model: str
    labels: str = ""
    is_frozen: bool = False
    """Whether a prefix is frozen: then a run of `epochs` is what is compared, with the pass that fills a cache."""
    extra_flops: float = 0.0
    """Operations of a sample's training step that torch's counter does not see: those of an LSTM."""

    def get_data_folder(self, root: Path, smoke: bool) -> Path:
        """The folder of its generated data."""
        return root / "data" / f"{self.kind}-{self.smoke_samples if smoke else self.samples}"

    def write_data(self, root: Path, smoke: bool) -> None:
        """Generate the data if they are not there."""
        from jobs.samples import write as samples

        folder = self.get_data_folder(root, smoke)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            target = folder / "images" if self.kind == "patterns" else folder
            samples.write(self.kind, target, self.smoke_samples if smoke else self.samples, 0)
            (folder / "made").touch()

    def write_job(self, root: Path, smoke: bool, *, long: bool) -> Path:
        """The job file: a whole run, or a long one."""
        text = (TRAIN + self.spec).format(
            name=self.name.lower(),
            epochs=self.long_epochs if long else self.epochs,
            batch=self.batch,
            size=self.size,
            data=json.dumps(str(self.get_data_folder(root, smoke).resolve()))[1:-1],
            model=self.model,
            labels=self.labels,
        )
        path = root / f"{self.name}-{'long' if long else 'whole'}.yaml"
        # A smoke run measures nothing for its plan.
        path.write_text(text + "optimize: {measure: off}\n" * smoke, encoding="utf-8")
        return path


ROWS = {
    row.name: row
    for row in (
        Row(
            "C1",
            "ResNet-18 at 64 from JPEG",
            IMAGES,
            "patterns",
            800,
            160,
            64,
            64,
            2,
            250,
            "name: resnet18, stem: large",
        ),
        Row(
            "C1b",
            "small CNN at 64, same folder",
            IMAGES,
            "patterns",
            800,
            160,
            64,
            128,
            4,
            800,
            "name: small-cnn, width: 16",
        ),
        Row("C2", "ResNet-18 at 224 from JPEG", IMAGES, "patterns", 200, 40, 224, 16, 1, 80, "name: resnet18"),
        Row(
            "C2b",
            "ResNet-18 at 224, all but the classifier frozen, 5 epochs",
            IMAGES,
            "patterns",
            800,
            160,
            224,
            32,
            5,
            80,
            'name: resnet18, freeze: {names: ["stem*", "stages*"]}',
            is_frozen=True,
        ),
        Row(
            "C3",
            "encoder of 6 layers of 384, two heads",
            TEXTS,
            "reports",
            1500,
            80,
            128,
            16,
            1,
            60,
            "name: encoder, layers: 6, width: 384, heads: 6",
            labels="causa: 0.6, prioridad: 0.4",
        ),
        Row(
            "C4",
            "encoder of 12 layers of 256, 10 frozen, 5 epochs of 1,000 texts",
            TEXTS,
            "reports",
            1000,
            60,
            256,
            16,
            5,
            60,
            "name: encoder, layers: 12, width: 256, heads: 4, freeze: {layers: 10, embeddings: true}",
            labels="modo: 0.2, causa: 0.5, prioridad: 0.3",
            is_frozen=True,
        ),
        Row(
            "C5",
            "CNN-LSTM on windows of 128",
            SERIES,
            "series",
            160000,
            16000,
            128,
            256,
            1,
            150,
            "name: cnn-lstm, cnn_channels: [64], lstm_hidden: 128",
            extra_flops=3 * 64 * 8 * 128 * (64 + 128),
        ),
        Row(
            "C6",
            "MLP of 256 and 256 on a million rows",
            TABLE,
            "table",
            1_000_000,
            20_000,
            0,
            1024,
            1,
            150,
            "name: mlp, hidden: [256, 256]",
        ),
    )
}
