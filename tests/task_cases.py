"""Every task, trained for a few steps on tiny raw files, with its model folder written: what predict and export need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from PIL import Image

from drivetrain.data.loader.batches import fetch_in_order
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.system.files import write_text
from drivetrain.training import batch_inputs, final_model, recorded_inputs, run
from drivetrain.training.evaluation.validation import evaluate
from drivetrain.training.final_model import save_model
from drivetrain.training.saver import Saver
from tests.tiny import assemble_plain_run, losses

GENERATOR = np.random.default_rng(0)
CALIBRATED = ("/log_loss", "/brier", "/ece")
"""Ends of the metrics that a model's temperature changes: those of the training are without it."""
COMMON = "train: {batch_size: 16, ema: 0.5}\noptimize: {cpu_threads: 1}\n"


def image_folders(folder: Path) -> None:
    """Colour images of odd sizes, two classes by brightness; one file for each mode that a decoder has to convert."""
    for part, count in (("train", 12), ("held", 8)):
        for number in range(count):
            (folder / part / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            pixels = GENERATOR.integers(0, 120, (20 + number, 31, 3)) + 120 * (number % 2)
            image = Image.fromarray(pixels.astype(np.uint8)).convert("L" if number % 5 == 0 else "RGB")
            image.save(folder / part / "ab"[number % 2] / f"{number}.{'png' if number % 3 else 'jpg'}")


def image_manifest(folder: Path) -> None:
    """Gray images with any of three labels, and two numbers."""
    for part, count in (("train", 30), ("held", 9)):
        lines = ["path,tags,age,depth"]
        (folder / f"pictures-{part}").mkdir()
        for number in range(count):
            pixels = GENERATOR.integers(0, 90, (16, 16))
            tags = [name for bit, name in enumerate(("crack", "dent", "rust")) if (number >> bit) & 1]
            for name in tags:
                pixels[:, {"crack": 2, "dent": 7, "rust": 12}[name]] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"pictures-{part}" / f"{number}.png")
            lines.append(f"pictures-{part}/{number}.png,{'|'.join(tags)},{20 + 3 * number},{pixels.mean():.3f}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def image_arrays(folder: Path) -> None:
    """Grey images as floats in a range of their own."""
    for part, count in (("train", 30), ("held", 11)):
        labels = np.arange(count) % 3
        images = GENERATOR.normal(size=(count, 8, 8)).astype(np.float32) * 3
        images[np.arange(count), labels] += 9
        np.savez(folder / f"{part}.npz", images=images, labels=labels)


def sound_folders(folder: Path) -> None:
    """Tones of two classes by pitch, at two sampling rates, of one or two channels, shorter and longer than a window."""
    for part, count in (("train", 20), ("held", 8)):
        for number in range(count):
            rate = 8000 if number % 5 else 11025
            time = np.arange(int(rate * (0.15 + 0.02 * (number % 9)))) / rate
            samples = 0.4 * np.sin(2 * np.pi * (400 + 700 * (number % 2)) * time) + 0.02 * GENERATOR.normal(
                size=len(time)
            )
            (folder / part / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            path = folder / part / "ab"[number % 2] / f"{number}.{'wav' if number % 3 else 'flac'}"
            soundfile.write(path, np.stack([samples] * (1 + number % 2), axis=1), rate)


def texts(folder: Path) -> None:
    """Texts of very different lengths with commas and quotes, two labels."""
    vocabulary = ["fuga", "motor", "ruido", "aceite", "bomba", "sensor", "falla", "eje"]
    for part, count in (("train", 40), ("held", 13)):
        lines = ["text,kind,urgent"]
        for number in range(count):
            text = " ".join(vocabulary[int(i)] for i in GENERATOR.integers(number % 2, 8 - number % 2, 1 + number % 17))
            lines.append(f'"{text}, ""ayer"" ñandú",{"xyz"[number % 3]},{["no", "yes"][number % 2]}')
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def long_series(folder: Path) -> None:
    """Two machines, with empty cells, in one of two states for a while each."""
    for part, count in (("train", 160), ("held", 60)):
        lines = ["time,machine,heat,noise,state,load"]
        for number in range(count):
            for machine_name in ("m1", "m2"):
                state = (number // 20) % 2
                heat = "" if number % 31 == 5 else f"{GENERATOR.normal() + 3 * state:.4f}"
                lines.append(f"{number},{machine_name},{heat},{GENERATOR.normal():.4f},{['on', 'off'][state]},{number}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def array_series(folder: Path) -> None:
    """Windows as arrays, two numbers to predict."""
    for part, count in (("train", 40), ("held", 9)):
        x = GENERATOR.normal(size=(count, 12, 3)).astype(np.float32) * 4 + 1
        np.savez(folder / f"{part}.npz", x=x, y=np.stack([x[:, :, 0].mean(1), 100 + 9 * x[:, -1, 1]], axis=1))


def table(folder: Path) -> None:
    """Numbers, categories, empty cells; in the new rows a category that training does not have."""
    for part, count in (("train", 60), ("held", 17)):
        lines = ["age,city,note,kind,price,weight,red,big"]
        for number in range(count):
            age = "" if number % 7 == 3 else str(20 + number % 50)
            city = "Nowhere" if part == "held" and number == 2 else ["Lima", "Quito", ""][number % 3]
            price = 1000 + 37 * (number % 50)
            lines.append(
                f"{age},{city},{'ab'[number % 2]},{'pqr'[number % 3]},{price},{number % 9},{number % 2},"
                f"{int(number % 3 == 0)}"
            )
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Case:
    """A task with its files."""

    files: Callable[[Path], None]
    suffix: str
    """Of train and held; empty for folders."""
    text: str


TABLE = "ignore: [kind, price, weight, red, big]".replace
CASES = {
    "image folders": Case(
        image_folders,
        "",
        "task: image-classification\ndata: {train: train, validation: held, "
        "image_size: 16, augment: {flip: true}}\nmodel: {name: small-cnn, width: 4, dropout: 0.2}\n",
    ),
    "image arrays": Case(
        image_arrays,
        ".npz",
        "task: image-classification\ndata: {train: train.npz, "
        "validation: held.npz, pixel_range: [-12, 21]}\nmodel: {name: resnet18, width: 4}\n",
    ),
    "sounds": Case(
        sound_folders,
        "",
        "task: audio-classification\ndata: {train: train, validation: held, seconds: 0.2, bands: 16, augment: {band_masks: "
        "{count: 1}, time_masks: {count: 1}}}\nmodel: {name: small-cnn, width: 4, dropout: 0.2}\n",
    ),
    "texts": Case(
        texts,
        ".csv",
        "task: text-classification\ndata: {train: train.csv, validation: held.csv, text: text, "
        "labels: {kind: 0.7, urgent: 0.3}}\nmodel: {name: encoder, layers: 1, width: 16, heads: 2}\n",
    ),
    "one text head": Case(
        texts,
        ".csv",
        "task: text-classification\ndata: {train: train.csv, validation: held.csv, "
        "text: text, labels: kind}\nmodel: {name: encoder, layers: 1, width: 16, heads: 2, "
        "pooling: cls}\n",
    ),
    "linear texts": Case(
        texts,
        ".csv",
        "task: text-classification\ndata: {train: train.csv, validation: held.csv, text: text, "
        "labels: {kind: 0.7, urgent: 0.3}}\nmodel: linear\n",
    ),
    "series": Case(
        long_series,
        ".csv",
        "task: series-classification\ndata: {train: train.csv, validation: held.csv, "
        "time: time, group: machine, features: [heat, noise], label: state, window: 10, stride: 5}\n"
        "model: {cnn_channels: [4], lstm_hidden: 6, bidirectional: true}\n",
    ),
    "series numbers": Case(
        array_series,
        ".npz",
        "task: series-regression\ndata: {train: train.npz, "
        "validation: held.npz}\nmodel: {cnn_channels: [4], lstm_hidden: 6, lstm_layers: 2}\n",
    ),
    "table": Case(
        table,
        ".csv",
        "task: tabular-classification\ndata: {train: train.csv, validation: held.csv, "
        f"target: kind, {TABLE('kind, ', '')}}}\nmodel: {{hidden: [8]}}\n",
    ),
    "tabm": Case(
        table,
        ".csv",
        "task: tabular-classification\ndata: {train: train.csv, validation: held.csv, "
        f"target: kind, {TABLE('kind, ', '')}}}\nmodel: {{name: tabm, members: 3, hidden: [8]}}\n",
    ),
    "table labels": Case(
        table,
        ".csv",
        "task: tabular-classification\ndata: {train: train.csv, validation: held.csv, "
        f"target: [red, big], {TABLE(', red, big', '')}}}\nmodel: {{hidden: [8]}}\n",
    ),
    "table numbers": Case(
        table,
        ".csv",
        "task: tabular-regression\ndata: {train: train.csv, validation: held.csv, "
        f"target: [price, weight], {TABLE('price, weight, ', '')}}}\nmodel: {{hidden: [8]}}\n",
    ),
    "image labels": Case(
        image_manifest,
        ".csv",
        "task: image-classification\ndata: {train: train.csv, validation: held.csv, label_column: tags, multi_label: true, "
        "image_size: 16}\nmodel: {name: small-cnn, width: 4}\n",
    ),
    "image numbers": Case(
        image_manifest,
        ".csv",
        "task: image-regression\ndata: {train: train.csv, validation: held.csv, label_column: [age, depth], image_size: 16}\n"
        "model: {name: small-cnn, width: 4}\n",
    ),
}


def train_case(case: Case, folder: Path, steps: int = 3) -> run.Run:
    """Files, job.yaml, a few steps, an evaluation and the model folder, all in `folder`."""
    torch.set_num_threads(1)
    case.files(folder)
    text = f"name: t\n{case.text}{COMMON}"
    (folder / "job.yaml").write_text(text)
    job = job_spec.load(folder / "job.yaml")
    home = folder / "run"
    home.mkdir()
    write_text(home / "job.yaml", spec_text(job))
    write_text(home / "state.json", f'{{"status": "done", "source": "{folder / "job.yaml"}"}}\n')
    done = assemble_plain_run(job, home)
    recorded_inputs.record_inputs(done, print, resumes=False)
    losses(done, steps)
    assert done.ema
    done.ema.update(done.model, torch.tensor(True))
    done.last_metrics, confusion = evaluate(done)
    done.best_metric.update(done.last_metrics, done.counters.step, 0)
    Saver(done).save_best({"metrics": done.last_metrics, "confusion": confusion})
    save_model(done, final_model.choose_weights(done))
    return done


@torch.inference_mode()
def collect_outputs(done: run.Run) -> dict[str, torch.Tensor]:
    """The outputs that validation computed, by head, in the order of the validation data."""
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in done.dataset.heads}
    assert done.ema
    with done.ema.swap_in(done.model):
        done.model.eval()
        for batch in fetch_in_order(done.dataset.validation, 7):
            outputs = done.step.forward.outputs(batch_inputs.preprocess(done, batch, None).inputs)
            for name, head_outputs in parts.items():
                head_outputs.append(outputs if isinstance(outputs, torch.Tensor) else outputs[name])
    return {name: torch.cat(head_outputs) for name, head_outputs in parts.items()}
