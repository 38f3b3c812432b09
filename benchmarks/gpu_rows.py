"""The rows of `gpu.py`: a job and generated data for each network that is measured, whole and in a small size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLASSES = 4
COMMON = "deterministic: false, epochs: 1000, clip_norm: null, schedule: constant"


@dataclass(frozen=True)
class Row:
    """One network. Sizes are those for a GPU; `small` those for trying the script out."""

    title: str
    data: str
    model: str
    batch: int
    samples: int
    side: int
    """Pixels, tokens, rows of a window, or columns."""
    small: tuple[str, int, int, int]
    """Model, batch, samples and side of the small size."""
    lr: float = 1e-3

    def job(self, small: bool) -> str:
        """The spec, but for `optimize:`."""
        model, batch, _, side = self.sizes(small)
        task, data = TASKS[self.data]
        return (
            f"name: gpu\ntask: {task}\ndata: {data.format(side=side)}\nmodel: {model}\n"
            f"train: {{batch_size: {batch}, optimizer: {{name: adamw, lr: {self.lr}}}, {COMMON}}}\n"
        )

    def sizes(self, small: bool) -> tuple[str, int, int, int]:
        """Model, batch, samples, side."""
        return self.small if small else (self.model, self.batch, self.samples, self.side)

    def write(self, folder: Path, small: bool) -> None:
        """Make the data, which can be learned."""
        _, _, samples, side = self.sizes(small)
        WRITERS[self.data](folder, samples, side)


TASKS = {
    "images": ("image-classification", "{{train: images.npz, validation: 0.1, image_size: {side}}}"),
    "texts": (
        "text-classification",
        "{{train: texts.jsonl, text: text, labels: kind, validation: 0.1, max_length: {side}}}",
    ),
    "series": ("series-classification", "{{train: series.npz, validation: 0.1}}"),
    "table": ("tabular-classification", "{{train: table.csv, target: kind, validation: 0.1}}"),
}


def images(folder: Path, samples: int, side: int) -> None:
    """Noise, brighter in the quarter that the class names."""
    drawn = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    pixels = drawn.integers(0, 200, (samples, side, side, 3), dtype=np.uint8)
    half = side // 2
    for row, label in enumerate(labels.tolist()):
        top, left = half * (label // 2), half * (label % 2)
        pixels[row, top : top + half, left : left + half] += 50
    np.savez(folder / "images.npz", images=pixels, labels=labels)


def texts(folder: Path, samples: int, side: int) -> None:
    """Random words, longer than the network reads, among them often one that names the class."""
    drawn = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(400)])
    with (folder / "texts.jsonl").open("w") as file:
        for row in range(samples):
            chosen = words[drawn.integers(0, len(words), side)]
            chosen[:: side // 8] = f"kind{row % CLASSES}"
            file.write(json.dumps({"text": " ".join(chosen), "kind": f"k{row % CLASSES}"}) + "\n")


def series(folder: Path, samples: int, side: int) -> None:
    """Sines whose frequency is the class, under noise."""
    drawn = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    waves = np.sin(np.linspace(0, 20, side)[None, :, None] * (1 + labels[:, None, None]))
    values = waves + drawn.normal(size=(samples, side, 6))
    np.savez(folder / "series.npz", x=values.astype(np.float32), y=labels)


def table(folder: Path, samples: int, side: int) -> None:
    """Numbers of which the first few tell the class."""
    drawn = np.random.default_rng(0)
    values = drawn.normal(size=(samples, side))
    kinds = (values[:, 0] > 0) * 2 + (values[:, 1] > 0)
    lines = [",".join([*(f"c{n}" for n in range(side)), "kind"])]
    lines += [",".join([*(f"{v:.4f}" for v in row), f"k{kind}"]) for row, kind in zip(values, kinds, strict=True)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


WRITERS = {"images": images, "texts": texts, "series": series, "table": table}
ROWS = {
    "resnet18": Row(
        "ResNet-18, 224 px",
        "images",
        "{name: resnet18, stem: large}",
        128,
        1600,
        224,
        ("{name: resnet18, width: 4}", 8, 80, 32),
    ),
    "cnn-lstm": Row(
        "CNN-LSTM, 128 rows",
        "series",
        "{name: cnn-lstm, dropout: 0.0}",
        256,
        20_000,
        128,
        ("{name: cnn-lstm, cnn_channels: [4], lstm_hidden: 8, dropout: 0.0}", 8, 80, 16),
    ),
    "bert-base": Row(
        "BERT-base-shaped encoder, 256 tokens",
        "texts",
        "{name: encoder, layers: 12, width: 768, heads: 12, dropout: 0.0}",
        32,
        640,
        256,
        ("{name: encoder, layers: 2, width: 32, heads: 4, dropout: 0.0}", 8, 80, 16),
        2e-5,
    ),
    "resnet50": Row(
        "ResNet-50, 224 px",
        "images",
        "{name: resnet50, stem: large}",
        64,
        1600,
        224,
        ("{name: resnet50, width: 4}", 8, 80, 32),
    ),
    "mlp": Row(
        "small MLP",
        "table",
        "{name: mlp, hidden: [256, 128], dropout: 0.0}",
        256,
        50_000,
        40,
        ("{name: mlp, hidden: [8], dropout: 0.0}", 8, 160, 6),
    ),
}
