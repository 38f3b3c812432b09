"""What a network learns faster that starts from an earlier run: accuracy after two epochs on few images of new classes.

    python benchmarks/transfer.py digits|patterns [--seeds 5] [--samples 50] [--epochs 2] [--folder DIR]
    python benchmarks/transfer.py series [--folder DIR]

The first half of the classes trains a network for long. Then the other half is learned from a few images of each class:
from random weights, from the weights of that run, and from these with frozen convolutions that are unfrozen in the
second epoch, at a tenth of the learning rate. All sides have the same images, settings and seed; all other images of
the new classes validate.

`series` trains a CNN-LSTM, fine-tunes it with frozen convolutions, and times that with cached features on and off.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = {
    "digits": "{{train: {train}, validation: {held}}}",
    "patterns": "{{train: {train}, validation: {held}, image_size: 64}}",
}
WIDTH = {"digits": 16, "patterns": 16}
JOB = """
name: {name}
task: image-classification
data: {data}
model: {model}
train: {{epochs: {epochs}, batch_size: 16, seed: {seed}, optimizer: {{name: adamw, lr: 3e-3}}{more}}}
optimize: {{measure: off, cpu_threads: 1}}
"""
BLOCK, PAIRS = 4, 8
"""Steps of a block, and how many blocks of each side take turns."""
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
    import torch

    torch.set_num_threads(1)
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
            folder,
            given.data,
            "gradual",
            new,
            f"{{{start}, {GRADUAL}}}",
            given.epochs,
            seed,
            ", lr_groups: {features: 0.1}",
        ),
    }


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits of 8x8."""
    with np.load(ROOT / "jobs" / "data" / "digits.npz") as file:
        return file["images"], file["labels"]


@functools.cache
def patterns() -> tuple[np.ndarray, np.ndarray]:
    """Generated textures in six classes, scaled to 64x64."""
    from PIL import Image

    from drivetrain.data import stateless_random
    from drivetrain.data.sample_data.images import PATTERNS, draw_texture

    made, labels = [], []
    for label, name in enumerate(PATTERNS):
        for number in range(200):
            image = Image.fromarray(draw_texture(name, stateless_random.make_generator(0, "sample", name, number)))
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
    """Train a job in this process, under the plan of `drivetrain train`; its last validation accuracy."""
    from drivetrain.hardware.detect import detect
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.plan import plan
    from drivetrain.system.files import write_json
    from drivetrain.system.signals import Signals
    from drivetrain.training.phase_timer import PhaseTimer
    from drivetrain.training.train import train
    from drivetrain.tuning.assembly import assemble_run

    folder = path.parent / "runs" / f"{path.stem}-001"
    folder.mkdir(parents=True)
    job, machine = job_spec.load(path), detect(folder.parent)
    write_json(folder / "hardware.json", machine.to_json())
    write_json(folder / "plan.json", plan.resolve(job, machine).to_json())
    with (path.parent / f"{path.stem}.log").open("w") as log, contextlib.redirect_stdout(log):
        train(assemble_run(folder, job, Signals(), PhaseTimer(), is_measured=True))
    return float(json.loads((folder / "result.json").read_text())["last"]["validation/accuracy"])


def series(folder: Path) -> int:
    """Train a CNN-LSTM, fine-tune it with frozen convolutions, and time that with and without cached features."""
    from drivetrain.data.sample_data import series

    (folder / "series").mkdir()
    series.write(folder / "series", 64_000, 0)
    models = {"source": "cnn-lstm", "tuned": f"{{from: {folder}/runs/source-001, freeze: {{names: [convolutions]}}}}"}
    for name, model in models.items():
        path = folder / f"{name}.yaml"
        path.write_text(SERIES.format(name=name, model=model, epochs=4))
        print(f"{name}: accuracy {run(path):.4f}", flush=True)
    return timed(folder / "tuned.yaml")


def timed(path: Path) -> int:
    """Samples per CPU second of blocks of steps in turn, cached features on and off, in this process on one thread."""
    from drivetrain.data.load_data import load
    from drivetrain.hardware.detect import detect
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan
    from drivetrain.system.signals import Signals
    from drivetrain.training.phase_timer import PhaseTimer
    from drivetrain.training.run import assemble

    job, machine = job_spec.load(path, ["optimize.cpu_threads=1"]), detect(path.parent)
    data = load(job)
    sides = {}
    for cached in (True, False):
        network = build(job, data)
        decided = plan.resolve(job, machine, inspection.inspect_workload(data, network.module, network.unfreezing))
        if cached:
            print(f"feature_cache: {decided.value('feature_cache')}: {decided.row('feature_cache').reason}")
        decided = decided.with_values({"feature_cache": cached})
        made = assemble(job, machine, decided, path.parent, data, network, Signals(), PhaseTimer())
        made.train_mode()
        sides[cached] = (made, itertools.cycle(itertools.islice(made.batches.epoch(0), BLOCK)))
        _block(*sides[cached])
    ratios = []
    for _ in range(PAIRS):
        on, off = (_block(*sides[cached]) for cached in (True, False))
        ratios.append(on / off)
        print(f"on {on:.0f} samples per CPU second, off {off:.0f}, {on / off:.2f}x", flush=True)
    print(f"median {statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) of {PAIRS} pairs in turn")
    return 0


def _block(made: Any, batches: Iterator[Any]) -> float:
    """Samples per CPU second of a block of steps: other programs take turns with this one."""
    start, samples = time.process_time(), 0
    for batch in itertools.islice(batches, BLOCK):
        made.set_learning_rates()
        made.step(made.preprocess(batch, 0), made.step_seed())
        made.counters.step += 1
        samples += len(batch)
    return samples / (time.process_time() - start)


if __name__ == "__main__":
    sys.exit(main())
