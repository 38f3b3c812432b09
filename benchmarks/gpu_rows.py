"""The rows of `gpu.py`, the most valuable first, and the job and data of each network, which are made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLASSES = 4
TRAIN = "deterministic: false, epochs: 1000, clip_norm: 1.0, schedule: constant"


@dataclass(frozen=True)
class Network:
    """A network with its data: sizes for a GPU, and those for a trial of the script."""

    title: str
    data: str
    model: str
    batch: int
    samples: int
    side: int
    """Pixels, tokens, rows of a window, or columns."""
    trial_sizes: tuple[int, int, int]
    """Batch, samples and side of a trial."""
    lr: float = 1e-3


ENCODER = "{name: encoder, layers: 12, width: 768, heads: 12, dropout: 0.1}"
NETWORKS = {
    "mlp": Network("MLP", "table", "{name: mlp, hidden: [256, 256], dropout: 0.1}", 1024, 400_000, 50, (16, 400, 6)),
    "bert": Network("BERT-base shape, ragged texts", "texts", ENCODER, 64, 6_000, 256, (8, 80, 32), 2e-5),
    "bert-frozen": Network(
        "the same, 10 of 12 layers frozen",
        "texts",
        ENCODER.replace("}", ", freeze: {layers: 10, embeddings: true}}"),
        64,
        3_000,
        256,
        (8, 80, 32),
        2e-5,
    ),
    "resnet50": Network("ResNet-50, 224 px", "images", "{name: resnet50, stem: large}", 256, 3_000, 224, (8, 60, 32)),
    "cnn-lstm": Network(
        "CNN-LSTM", "series", "{name: cnn-lstm, cnn_channels: [64], lstm_hidden: 128}", 256, 40_000, 128, (8, 200, 16)
    ),
    "resnet18": Network("ResNet-18, 224 px", "images", "{name: resnet18, stem: large}", 512, 4_000, 224, (8, 60, 32)),
    "resnet-small": Network(
        "ResNet-18, 32 px", "images", "{name: resnet18, stem: small}", 1024, 20_000, 32, (8, 80, 16)
    ),
}
SMALLER: tuple[tuple[str, str], ...] = (
    ("layers: 12, width: 768, heads: 12", "layers: 3, width: 24, heads: 2"),
    ("layers: 10", "layers: 2"),
)
SMALLER += tuple((f"resnet{depth},", f"resnet{depth}, width: 4,") for depth in (18, 50))
SETTINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "step-graph": ("optimize.step_graph=true",),
    "padded": ("optimize.unpadding=off",),
    "bucketed": ("optimize.unpadding=2048",),
    "packed": ("optimize.unpadding=packed",),
    "compile": ("optimize.compile=true",),
    "compile-graph": ("optimize.compile=true", "optimize.step_graph=true"),
    "benchmark": ("optimize.cudnn_benchmark=true",),
    "ema": ("train.ema=0.999",),
    "fp32": ("optimize.precision=fp32",),
    "tf32": ("optimize.precision=tf32",),
    "fp16": ("optimize.precision=fp16",),
    "augmented": ("data.augment.crop_padding=4", "data.augment.flip=true", "data.augment.erasing.probability=0.25"),
    "checkpointing": ("optimize.gradient_checkpointing=true",),
    "segments-off": ("optimize.allocator_segments=false",),
}


def list_rows() -> list[tuple[str, int]]:
    """Name and time limit in seconds of each row, in the order of their value."""
    rows = [("ceilings", 60)]
    for network in ("mlp", "bert"):
        rows += _rows_of(network)
    rows += [(f"ours:bert:{setting}", 75) for setting in ("padded", "bucketed", "packed")]
    rows += [(f"steps:{network}", 60) for network in ("mlp", "bert")]
    rows += [("tests", 240), *((f"bits:{network}", 60) for network in ("mlp", "resnet-small", "cnn-lstm"))]
    for network in ("resnet50", "cnn-lstm", "resnet18", "resnet-small"):
        rows += [*_rows_of(network), (f"steps:{network}", 60)]
    rows += [(f"reference:{network}:compiled", 150) for network in ("resnet50", "bert", "resnet18")]
    rows += [(f"lightning:{network}:tuned", 90) for network in NETWORKS if network != "bert-frozen"]
    rows += [("huggingface:bert:tuned", 90), ("huggingface:bert:default", 90)]
    rows += [("ours:bert-frozen:default", 60), ("ours:resnet50:compile", 120), ("ours:bert:compile", 120)]
    rows += [("ours:resnet50:compile-graph", 120), ("ours:resnet18:compile-graph", 120)]
    rows += [(f"ours:resnet18:{precision}", 60) for precision in ("fp32", "tf32", "fp16")]
    rows += [("ours:resnet50:ema", 60), ("ours:resnet-small:augmented", 60), ("ours:resnet50:checkpointing", 60)]
    rows += [
        ("ours:resnet18:benchmark", 60),
        ("ours:resnet50:segments-off", 60),
        ("start:cold", 150),
        ("start:warm", 60),
    ]
    return rows


def _rows_of(network: str) -> list[tuple[str, int]]:
    # Steps of ragged texts are not recorded.
    settings = ("default",) if NETWORKS[network].data == "texts" else ("default", "step-graph")
    ours = [(f"ours:{network}:{setting}", 75) for setting in settings]
    return ours + [(f"reference:{network}:{loop}", 60) for loop in ("eager", "graph")]


def make_job(name: str, folder: Path, *, trial: bool) -> Path:
    """The job file of a network in `folder`, with its data beside it; both are made if they are not there."""
    network = NETWORKS[name]
    batch, samples, side = network.trial_sizes if trial else (network.batch, network.samples, network.side)
    model = network.model
    for large, small in SMALLER if trial else ():
        model = model.replace(large, small)
    data_folder = folder / f"{network.data}-{samples}-{side}"
    if not (data_folder / "complete").exists():
        data_folder.mkdir(parents=True, exist_ok=True)
        WRITERS[network.data](data_folder, samples, side)
        (data_folder / "complete").touch()
    task, data = TASKS[network.data]
    path = data_folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ntask: {task}\ndata: {data.format(side=side)}\nmodel: {model}\n"
        f"train: {{batch_size: {batch}, optimizer: {{name: adamw, lr: {network.lr}}}, {TRAIN}}}\n"
        "optimize: {measure: off}\n"
    )
    return path


TASKS = {
    "images": ("image-classification", "{{train: images.npz, validation: 0.1, image_size: {side}}}"),
    "texts": (
        "text-classification",
        "{{train: texts.jsonl, text: text, labels: kind, validation: 0.1, max_length: {side}}}",
    ),
    "series": ("series-classification", "{{train: series.npz, validation: 0.1}}"),
    "table": ("tabular-classification", "{{train: table.csv, target: kind, validation: 0.1}}"),
}


def write_images(folder: Path, samples: int, side: int) -> None:
    """Write noise that is brighter in the quarter that the class names."""
    random = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    pixels = random.integers(0, 200, (samples, side, side, 3), dtype=np.uint8)
    half = side // 2
    for row, label in enumerate(labels.tolist()):
        top, edge = half * (label // 2), half * (label % 2)
        pixels[row, top : top + half, edge : edge + half] += 50
    np.savez(folder / "images.npz", images=pixels, labels=labels)


def write_texts(folder: Path, samples: int, side: int) -> None:
    """Write texts as long as those of users: log-normal lengths, median 25 words, 95 % below half of the longest."""
    random = np.random.default_rng(0)
    vocabulary = np.array([f"word{number}" for number in range(400)])
    median = min(25, side // 4)
    lengths = random.lognormal(np.log(median), np.log(side / 2 / median) / 1.645, samples).clip(4, side - 2)
    with (folder / "texts.jsonl").open("w") as file:
        for row, length in enumerate(lengths.astype(int).tolist()):
            text = vocabulary[random.integers(0, len(vocabulary), length)]
            text[:: max(1, length // 4)] = f"kind{row % CLASSES}"
            file.write(json.dumps({"text": " ".join(text), "kind": f"k{row % CLASSES}"}) + "\n")


def write_series(folder: Path, samples: int, side: int) -> None:
    """Write sines whose frequency is the class, under noise."""
    random = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    waves = np.sin(np.linspace(0, 20, side)[None, :, None] * (1 + labels[:, None, None]))
    values = waves + random.normal(size=(samples, side, 6))
    np.savez(folder / "series.npz", x=values.astype(np.float32), y=labels)


def write_table(folder: Path, samples: int, side: int) -> None:
    """Write numbers of which the first two tell the class."""
    random = np.random.default_rng(0)
    values = random.normal(size=(samples, side))
    kinds = (values[:, 0] > 0) * 2 + (values[:, 1] > 0)
    lines = [",".join([*(f"c{n}" for n in range(side)), "kind"])]
    lines += [",".join([*(f"{v:.4f}" for v in row), f"k{kind}"]) for row, kind in zip(values, kinds, strict=True)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "images": write_images,
    "texts": write_texts,
    "series": write_series,
    "table": write_table,
}
