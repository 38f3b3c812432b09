"""What a network learns faster that starts from an earlier run: accuracy after two epochs on few images of new classes.

    python benchmarks/transfer.py digits|patterns [--seeds 5] [--samples 50] [--epochs 2] [--folder DIR]
    python benchmarks/transfer.py series [--folder DIR]

The first half of the classes trains a network for long. Then the other half is learned from a few images of each class:
from random weights, from the weights of that run, and from these with frozen convolutions that are unfrozen in the
second epoch, at a tenth of the learning rate. All sides have the same images, settings and seed; all other images of
the new classes validate. Every training is `drivetrain train` as anyone runs it.

`series` trains a CNN-LSTM, and writes the job that fine-tunes it with frozen convolutions, for `drivetrain bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = {
    "digits": "{{train: {train}, validation: {held}}}",
    "patterns": "{{train: {train}, validation: {held}, image_size: 64}}",
}
WIDTH = {"digits": 32, "patterns": 16}
JOB = """
name: {name}
task: image-classification
data: {data}
model: {model}
train: {{epochs: {epochs}, batch_size: 16, seed: {seed}, optimizer: {{name: adamw, lr: 3e-3}}{more}}}
optimize: {{measure: off, cpu_threads: 1}}
"""
GRADUAL = "freeze: {names: [features]}, unfreeze: [{epoch: 2, names: [features]}]"
SERIES = """
name: {name}
task: series-classification
data:
  train: series/train.csv
  time: time
  group: machine
  features: [vibration_x, vibration_y, temperature, pressure, current, flow]
  label: regime
  window: 64
  stride: 8
  validation: 0.2
model: {model}
train: {{epochs: {epochs}, batch_size: 256, optimizer: {{name: adamw, lr: 3e-3}}}}
"""


def main() -> int:
    """Measure, and print a table."""
    given = arguments()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    sys.path.insert(0, str(ROOT))
    if given.data == "series":
        return series(given.folder)
    rows: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        for side, accuracy in compared(given, seed).items():
            rows.setdefault(side, []).append(accuracy)
        print(f"seed {seed}: " + ", ".join(f"{side} {scores[-1]:.4f}" for side, scores in rows.items()), flush=True)
    print("\n| start | accuracy by seed | mean | standard deviation |\n| --- | --- | --- | --- |")
    for side, scores in rows.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        shown = " ".join(f"{score:.4f}" for score in scores)
        print(f"| {side} | {shown} | {statistics.mean(scores):.4f} | {spread:.4f} |")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", choices=[*DATA, "series"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=50, help="training images of each new class")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-transfer"))
    return parser.parse_args()


def compared(given: argparse.Namespace, seed: int) -> dict[str, float]:
    """The last validation accuracy of each side."""
    folder = given.folder / f"seed-{seed}"
    folder.mkdir()
    images, labels = digits() if given.data == "digits" else patterns()
    known = labels < (labels.max() + 1) // 2
    source = written(folder, "known", images[known], labels[known], seed, None)
    new = written(folder, "new", images[~known], labels[~known], seed, given.samples)
    network = f"{{name: small-cnn, width: {WIDTH[given.data]}}}"
    trained(folder, given.data, "source", source, network, 8, seed)
    start = f"from: {folder}/runs/source-001"
    return {
        "random weights": trained(folder, given.data, "random", new, network, given.epochs, seed),
        "an earlier run": trained(folder, given.data, "transfer", new, f"{{{start}}}", given.epochs, seed),
        "an earlier run, gradually": trained(
            folder, given.data, "gradual", new, f"{{{start}, {GRADUAL}}}", given.epochs, seed,
            ", lr_groups: {features: 0.1}",
        ),
    }


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits of 8x8."""
    with np.load(ROOT / "jobs" / "data" / "digits.npz") as file:
        return file["images"], file["labels"]


def patterns() -> tuple[np.ndarray, np.ndarray]:
    """Generated textures in six classes, scaled to 64x64."""
    from PIL import Image
    from runtime.data import stateless_random
    from runtime.data.sample_data.images import PATTERNS, texture

    made, labels = [], []
    for label, name in enumerate(PATTERNS):
        for number in range(200):
            image = Image.fromarray(texture(name, stateless_random.generator(0, "sample", name, number)))
            made.append(np.asarray(image.resize((64, 64))))
            labels.append(label)
    return np.stack(made), np.array(labels)


def written(
    folder: Path, name: str, images: np.ndarray, labels: np.ndarray, seed: int, count: int | None
) -> tuple[Path, Path]:
    """Files of training and validation images: `count` of each class, or four fifths, and all others."""
    drawn, train = np.random.default_rng(seed), []
    for label in np.unique(labels):
        own = drawn.permutation(np.flatnonzero(labels == label))
        train += own[: count or len(own) * 4 // 5].tolist()
    chosen = np.isin(np.arange(len(labels)), train)
    paths = (folder / f"{name}-train.npz", folder / f"{name}-held.npz")
    for path, part in zip(paths, (chosen, ~chosen), strict=True):
        np.savez(path, images=images[part], labels=labels[part] - labels.min())
    return paths


def trained(
    folder: Path, data: str, name: str, files: tuple[Path, Path], model: str, epochs: int, seed: int, more: str = ""
) -> float:
    """The last validation accuracy of a training."""
    path = folder / f"{name}.yaml"
    text = DATA[data].format(train=files[0], held=files[1])
    path.write_text(JOB.format(name=name, data=text, model=model, epochs=epochs, seed=seed, more=more))
    return run(path)


def run(path: Path) -> float:
    """Train a job; its last validation accuracy."""
    line = [sys.executable, "-m", "runtime", "train", str(path), "--runs", str(path.parent / "runs")]
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    result = json.loads((path.parent / "runs" / f"{path.stem}-001" / "result.json").read_text())
    return float(result["last"]["validation/accuracy"])


def series(folder: Path) -> int:
    """Train a CNN-LSTM, fine-tune it with frozen convolutions, and print what to compare."""
    from runtime.data.sample_data import series

    (folder / "series").mkdir()
    series.write(folder / "series", 64_000, 0)
    models = {"source": "cnn-lstm", "tuned": f"{{from: {folder}/runs/source-001, freeze: {{names: [convolutions]}}}}"}
    for name, model in models.items():
        path = folder / f"{name}.yaml"
        path.write_text(SERIES.format(name=name, model=model, epochs=4))
        print(f"{name}: accuracy {run(path):.4f}", flush=True)
    print(f"drivetrain bench {folder}/tuned.yaml --against optimize.feature_cache=false")
    return 0


if __name__ == "__main__":
    sys.exit(main())
