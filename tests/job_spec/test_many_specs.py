"""Specs drawn at random from what a spec may say: each is refused as a mistake (exit 2 or 3), or it trains.

Never a traceback, never a loss that is not finite, never another exit: the nightly run draws many, the ordinary
suite some.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from drivetrain.errors import DataError, NumericsError, SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import saved_model
from tests import own_job
from tests.supervisor.custom_run import train_job

torch.set_num_threads(1)
NIGHTLY = int(os.environ.get("DRIVETRAIN_DRAWN", "400"))
METRICS = ("loss", "accuracy", "f1", "mae", "rmse", "r2")
Draw = random.Random


def images(folder: Path, draw: Draw) -> dict[str, Any]:
    classes, count = draw.choice((2, 3, 5)), draw.choice((12, 25, 40))
    labels = np.arange(count) % classes
    pixels = np.random.default_rng(0).integers(0, 120, (count, 8, 8), np.uint8)
    pixels[np.arange(count), labels] += 100
    np.savez(folder / "a.npz", images=pixels, labels=labels)
    mixed = {"alpha": draw.choice((0.01, 1.0, 100.0)), "probability": draw.choice((0.0, 0.5, 1.0))}
    augment = {
        "flip": draw.random() < 0.5,
        **({draw.choice(("mixup", "cutmix")): mixed} if draw.random() < 0.3 else {}),
    }
    return {
        "task": "image-classification",
        "data": {"train": "a.npz", "augment": augment},
        "model": {"name": "small-cnn", "width": 4, "dropout": draw.choice((0.0, 0.9))},
    }


def texts(folder: Path, draw: Draw) -> dict[str, Any]:
    vocabulary = ["fuga", "motor", "ruido", "aceite", "bomba", "sensor", "falla", "eje"]
    lines = ["text,kind,part"]
    lines += [
        f"{vocabulary[i % 8]} {vocabulary[i * 3 % 8]},{'ab'[i % 2]},{'xyz'[i % 3]}"
        for i in range(draw.choice((24, 40)))
    ]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    head = {
        "weight": draw.choice((0.001, 3.0)),
        "class_weights": draw.choice(("balanced", "none")),
        "label_smoothing": 0.3,
    }
    labels = draw.choice(("kind", ["part"], ["kind", "part"], {"kind": head, "part": 0.5}))
    return {
        "task": "text-classification",
        "data": {"train": "a.csv", "text": "text", "labels": labels, "max_length": 8},
        "model": {"name": "encoder", "layers": 1, "width": 8, "heads": 2, "vocabulary": 100},
    }


def series(folder: Path, draw: Draw) -> dict[str, Any]:
    kind, count = draw.choice(("classification", "regression")), draw.choice((20, 33))
    x = np.random.default_rng(0).normal(size=(count, 12, 2)).astype(np.float32)
    y = np.arange(count) % draw.choice((2, 4)) if kind == "classification" else x[:, 0, : draw.choice((1, 2))] * 100
    np.savez(folder / "a.npz", x=x, y=y)
    return {
        "task": f"series-{kind}",
        "data": {"train": "a.npz"},
        "model": {"name": "cnn-lstm", "cnn_channels": [4], "lstm_hidden": 4},
    }


def table(folder: Path, draw: Draw) -> dict[str, Any]:
    count = draw.choice((24, 41))
    rows = [f"{i * 7 % 11},{'ab'[i % 2]},{'pqr'[i % 3]},{i % 2},{i // 2 % 2},{i * 0.3 - 4:.2f}" for i in range(count)]
    (folder / "a.csv").write_text("\n".join(["u,v,class,one,two,y", *rows]) + "\n")
    task, target = draw.choice(
        (
            ("classification", "class"),
            ("classification", "v"),
            ("classification", ["one", "two"]),
            ("regression", "y"),
            ("regression", ["y", "u"]),
        )
    )
    ignore = [name for name in ("class", "v", "one", "two", "y", "u") if name not in target][1:3]
    return {
        "task": f"tabular-{task}",
        "data": {"train": "a.csv", "target": target, "ignore": ignore},
        "model": draw.choice(({"name": "mlp", "hidden": [8]}, {"name": "tabm", "members": 3, "hidden": [8]})),
    }


def custom(folder: Path, draw: Draw) -> dict[str, Any]:
    own_job.write_job(folder)
    targets = draw.choice(("(x.sum(dim=1) > 0).long()", "(x[:, :2] > 0).float()", "x[:, :2] * 7", "x.sum(dim=1)"))
    (folder / "my_data.py").write_text(own_job.DATA.replace("(x.sum(dim=1) > 0).long()", targets))
    return {
        "task": "custom",
        "data": {"file": "my_data.py", "arguments": {"samples": draw.choice((24, 51))}},
        "model": {"file": "my_model.py"},
    }


def loss(draw: Draw, task: str) -> Any:
    """A loss that mostly goes with the task."""
    smooth = {"label_smoothing": draw.choice((0.0, 0.1, 0.999))}
    alpha = {"alpha": draw.choice((0.0, 0.25, 0.99))} if draw.random() < 0.4 else {}
    classes = (
        {"name": "cross-entropy"} | smooth,
        {"name": "focal", "gamma": draw.choice((0, 0.2, 1.0, 5.0, 300.0))} | smooth | alpha,
    )
    numbers = ("mse", {"name": "huber", "delta": draw.choice((1e-30, 1.0, 1e30))})
    fitting = numbers if task.endswith("regression") else classes
    return draw.choice((None, *fitting, *fitting, draw.choice((*classes, *numbers, {"name": "bce"} | smooth))))


SCHEDULES: tuple[Callable[[Draw], Any], ...] = (
    lambda draw: {"name": "one-cycle", "warmup": draw.choice((0.0, 1e-9, 0.3, 0.5, 0.9999))},
    lambda draw: {"name": "cosine", "warmup": draw.choice((0.0, 0.5, 0.9999)), "floor": draw.choice((0.0, 0.9))},
    lambda draw: {"name": "linear", "warmup": draw.choice((0.0, 0.9999))},
    lambda draw: {"name": "step", "epochs": draw.choice((1, 1000)), "factor": draw.choice((0.0, 0.5))},
    lambda draw: {
        "name": "plateau",
        "patience": draw.choice((0, 1)),
        "factor": draw.choice((0.0, 0.5)),
        "metric": metric(draw),
    },
    lambda draw: "constant",
)


def metric(draw: Draw) -> str:
    """A metric: of this task, of another one, or of none."""
    if draw.random() < 0.75:
        return "validation/loss"
    return draw.choice(("train/loss", "loss", *(f"validation/{name}" for name in METRICS), "validation/kind/f1"))


def optimizer(draw: Draw) -> dict[str, Any]:
    shared = {"lr": draw.choice((1e-12, 1e-3, 0.1)), "weight_decay": draw.choice((0, 0.1))}
    if draw.random() < 0.3:
        return shared | {"name": "sgd", "momentum": draw.choice((0.0, 0.99, 0.9)), "nesterov": draw.random() < 0.3}
    return shared | {
        "name": draw.choice(("adam", "adamw")),
        "betas": draw.choice(([0.0, 0.0], [0.9, 0.999])),
        "eps": draw.choice((1e-8, 1.0)),
        "amsgrad": draw.random() < 0.3,
    }


def draw_spec(folder: Path, seed: int) -> dict[str, Any]:
    """A spec, its data beside it."""
    draw = random.Random(seed)
    task_spec = draw.choice((images, images, texts, series, table, custom))(folder, draw)
    train: dict[str, Any] = {
        "epochs": draw.choice((1, 2, 3)),
        "steps": draw.choice((1, 2, 2, 3)),
        "batch_size": draw.choice((1, 2, 7, 8, 1000)),
        "optimizer": optimizer(draw),
        "schedule": draw.choice(SCHEDULES)(draw),
        "loss": loss(draw, task_spec["task"]),
        "class_weights": "balanced"
        if draw.random() < 0.25 and not task_spec["task"].endswith("regression")
        else "none",
        "clip_norm": draw.choice((None, 1e-30, 1.0, 1e30)),
        "ema": draw.choice((None, 1e-9, 0.5, 0.9999999)),
        "loss_spike": draw.choice(("ignore", "warn", "rollback")),
        "early_stopping": None
        if draw.random() < 0.6
        else {"metric": metric(draw), "patience": draw.choice((1, 5)), "min_delta": draw.choice((0, 1e9))},
    }
    checkpoint = {
        "every": draw.choice(("epoch", "1 steps", "5m")),
        "keep": draw.choice((1, 3)),
        "best": metric(draw) if draw.random() < 0.4 else None,
    }
    if "data" in task_spec and "train" in task_spec["data"]:
        task_spec["data"]["validation"] = draw.choice((0.1, 0.25, 0.5))
    optimize = {"measure": "off", "cpu_threads": 1, "micro_batch": draw.choice(("off", "off", 3, 1))}
    return {"name": "drawn", **task_spec, "train": train, "checkpoint": checkpoint, "optimize": optimize}


def outcome(folder: Path, seed: int) -> str:
    """What became of one spec: refused, or trained."""
    folder.mkdir()
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(draw_spec(folder, seed), sort_keys=False))
    try:
        job_spec.load(path)
    except (SpecError, DataError):
        return "refused"
    try:
        run_folder = train_job(path)
    except (SpecError, DataError):
        return "refused with its data"
    except NumericsError as error:
        pytest.fail(f"seed {seed}: {error}\n{path.read_text()}")
    except Exception as error:
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{path.read_text()}")
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row[name] for row in rows for name in row if name.endswith("loss")]
    assert losses, seed
    assert all(math.isfinite(value) for value in losses), f"seed {seed}: {losses}\n{path.read_text()}"
    assert not any(row.get("skipped") for row in rows), seed
    saved_model.load(run_folder)
    return "trained"


def check(seeds: range, folder: Path) -> None:
    outcomes = [outcome(folder / str(seed), seed) for seed in seeds]
    counts = {kind: outcomes.count(kind) for kind in sorted(set(outcomes))}
    print(f"{len(outcomes)} specs drawn at random: {counts}")
    assert counts["trained"] > len(outcomes) / 4, counts
    assert counts["refused"] > len(outcomes) / 10, counts


def test_thirty_specs(tmp_path: Path) -> None:
    check(range(30), tmp_path)


@pytest.mark.nightly
def test_four_hundred_specs(tmp_path: Path) -> None:
    check(range(1000, 1000 + NIGHTLY), tmp_path)
