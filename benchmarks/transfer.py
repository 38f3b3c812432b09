"""How much an earlier run's weights help a network: accuracy after two epochs on few images of new classes.

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
BLOCK_STEPS, PAIRS = 4, 8
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
    options = parse_arguments()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)
    if options.data == "series":
        return measure_series(options.folder)
    rows: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for side, accuracy in compare_starts(options, seed).items():
            rows.setdefault(side, []).append(accuracy)
        print(f"seed {seed}: " + ", ".join(f"{side} {scores[-1]:.4f}" for side, scores in rows.items()), flush=True)
    print("\n| start | accuracy by seed | mean | standard deviation |\n| --- | --- | --- | --- |")
    for side, scores in rows.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        score_list = " ".join(f"{score:.4f}" for score in scores)
        print(f"| {side} | {score_list} | {statistics.mean(scores):.4f} | {spread:.4f} |")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", choices=[*DATA, "series"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=50, help="training images of each new class")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-transfer"))
    return parser.parse_args()


def compare_starts(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Train from each start; returns their last validation accuracies."""
    folder = options.folder / f"seed-{seed}"
    folder.mkdir()
    images, labels = read_digits() if options.data == "digits" else make_patterns()
    is_known = labels < (labels.max() + 1) // 2
    source = write_files(folder, "known", images[is_known], labels[is_known], seed, None)
    new = write_files(folder, "new", images[~is_known], labels[~is_known], seed, options.samples)
    network = f"{{name: small-cnn, width: {WIDTH[options.data]}}}"
    train_job(folder, options.data, "source", source, network, 8, seed)
    source_setting = f"from: {folder}/runs/source-001"
    return {
        "random weights": train_job(folder, options.data, "random", new, network, options.epochs, seed),
        "an earlier run": train_job(
            folder, options.data, "transfer", new, f"{{{source_setting}}}", options.epochs, seed
        ),
        "an earlier run, gradually": train_job(
            folder,
            options.data,
            "gradual",
            new,
            f"{{{source_setting}, {GRADUAL}}}",
            options.epochs,
            seed,
            ", lr_groups: {features: 0.1}",
        ),
    }


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits of 8x8."""
    with np.load(ROOT / "jobs" / "data" / "digits.npz") as file:
        return file["images"], file["labels"]


@functools.cache
def make_patterns() -> tuple[np.ndarray, np.ndarray]:
    """Generated textures in six classes, scaled to 64x64."""
    from PIL import Image

    from drivetrain.data import stateless_random
    from jobs.samples.patterns import PATTERNS, draw_texture

    images, labels = [], []
    for label, name in enumerate(PATTERNS):
        for number in range(200):
            image = Image.fromarray(draw_texture(name, stateless_random.make_generator(0, "sample", name, number)))
            images.append(np.asarray(image.resize((64, 64))))
            labels.append(label)
    return np.stack(images), np.array(labels)


def write_files(
    folder: Path, name: str, images: np.ndarray, labels: np.ndarray, seed: int, count: int | None
) -> tuple[Path, Path]:
    """Write files of training images, `count` of each class or four fifths, and of all others for validation."""
    generator, train_rows = np.random.default_rng(seed), []
    for label in np.unique(labels):
        class_rows = generator.permutation(np.flatnonzero(labels == label))
        train_rows += class_rows[: count or len(class_rows) * 4 // 5].tolist()
    is_training = np.isin(np.arange(len(labels)), train_rows)
    paths = (folder / f"{name}-train.npz", folder / f"{name}-held.npz")
    for path, part in zip(paths, (is_training, ~is_training), strict=True):
        np.savez(path, images=images[part], labels=labels[part] - labels.min())
    return paths


def train_job(
    folder: Path,
    data: str,
    name: str,
    files: tuple[Path, Path],
    model: str,
    epochs: int,
    seed: int,
    extra_settings: str = "",
) -> float:
    """Write a job and train it; returns its last validation accuracy."""
    path = folder / f"{name}.yaml"
    text = DATA[data].format(train=files[0], held=files[1])
    path.write_text(JOB.format(name=name, data=text, model=model, epochs=epochs, seed=seed, more=extra_settings))
    return run_job(path)


def run_job(path: Path) -> float:
    """Train a job in this process, under the plan of `drivetrain train`; returns its last validation accuracy."""
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


def measure_series(folder: Path) -> int:
    """Train a CNN-LSTM, fine-tune it with frozen convolutions, and time that with and without cached features."""
    from jobs.samples import series

    (folder / "series").mkdir()
    series.write(folder / "series", 64_000, 0)
    models = {"source": "cnn-lstm", "tuned": f"{{from: {folder}/runs/source-001, freeze: {{names: [convolutions]}}}}"}
    for name, model in models.items():
        path = folder / f"{name}.yaml"
        path.write_text(SERIES.format(name=name, model=model, epochs=4))
        print(f"{name}: accuracy {run_job(path):.4f}", flush=True)
    return time_cached_features(folder / "tuned.yaml")


def time_cached_features(path: Path) -> int:
    """Samples per CPU second of blocks of steps in turn, cached features on and off, in this process on one thread."""
    from drivetrain.data.load_data import load
    from drivetrain.hardware.detect import detect
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan
    from drivetrain.system.signals import Signals
    from drivetrain.training.assemble import assemble
    from drivetrain.training.phase_timer import PhaseTimer

    job, machine = job_spec.load(path, ["optimize.cpu_threads=1"]), detect(path.parent)
    data = load(job)
    sides = {}
    for cached in (True, False):
        network = build(job, data)
        job_plan = plan.resolve(job, machine, inspection.inspect_workload(data, network.module, network.unfreezing))
        if cached:
            print(f"feature_cache: {job_plan.value('feature_cache')}: {job_plan.row('feature_cache').reason}")
        job_plan = job_plan.with_values({"feature_cache": cached})
        run = assemble(job, machine, job_plan, path.parent, data, network, Signals(), PhaseTimer())
        run.train_mode()
        sides[cached] = (run, itertools.cycle(itertools.islice(run.batches.epoch(0), BLOCK_STEPS)))
        _time_block(*sides[cached])
    ratios = []
    for _ in range(PAIRS):
        on, off = (_time_block(*sides[cached]) for cached in (True, False))
        ratios.append(on / off)
        print(f"on {on:.0f} samples per CPU second, off {off:.0f}, {on / off:.2f}x", flush=True)
    print(f"median {statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) of {PAIRS} pairs in turn")
    return 0


def _time_block(run: Any, batches: Iterator[Any]) -> float:
    """Samples per CPU second of a block of steps: other programs take turns with this one."""
    from drivetrain.training import batch_inputs

    start, samples = time.process_time(), 0
    for batch in itertools.islice(batches, BLOCK_STEPS):
        run.rates.set(run.counters, run.best_metric.factor())
        run.step(batch_inputs.preprocess(run, batch, 0), batch_inputs.share_batch(run))
        run.counters.step += 1
        samples += len(batch)
    return samples / (time.process_time() - start)


if __name__ == "__main__":
    sys.exit(main())
