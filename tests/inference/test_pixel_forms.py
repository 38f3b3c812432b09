"""predict and evaluate agree on images of every form, and give for each form what they give for that of the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from drivetrain.cli import main
from tests.task_cases import Case, train_case

Pixels = npt.NDArray[np.int64]
SPEC = "task: image-classification\ndata: {train: train, validation: held, image_size: 16}\nmodel: {name: small-cnn, width: 4}\n"
COUNT = 24


def pictures(low: int, high: int, seed: int) -> tuple[Pixels, list[str]]:
    """Noisy images with values from `low` to `high`, (COUNT, 16, 16); those of class b are brighter."""
    shares = np.random.default_rng(seed).uniform(0, 0.8, (COUNT, 16, 16))
    shares[1::2] += 0.2
    shares[:, 0, :2] = 0, 1
    return np.rint(low + shares * (high - low)).astype(np.int64), ["ab"[number % 2] for number in range(COUNT)]


def files(folder: Path, images: Pixels, labels: list[str], kind: str, dtype: Any) -> Path:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(dtype)).save(folder / label / f"{number:02}.{kind}")
    return folder


def arrays(folder: Path, images: Pixels, labels: list[str], dtype: Any) -> Path:
    order = np.argsort(labels, kind="stable")  # as folders are listed
    np.savez(folder.with_suffix(".npz"), images=images[order].astype(dtype), labels=np.array(labels)[order])
    return folder.with_suffix(".npz")


FORMS: dict[str, tuple[int, int, Callable[..., Path], list[Callable[..., Path]]]] = {
    "counts in 16 bits": (
        7820,
        7960,
        lambda folder, images, labels: files(folder, images, labels, "tif", np.uint16),
        [
            lambda folder, images, labels: files(folder, images, labels, "png", np.uint16),
            lambda folder, images, labels: arrays(folder, images, labels, np.uint16),
            lambda folder, images, labels: arrays(folder, images, labels, np.int32),
            lambda folder, images, labels: arrays(folder, images, labels, np.float64),
        ],
    ),
    "bytes": (
        10,
        60,
        lambda folder, images, labels: files(folder, images, labels, "png", np.uint8),
        [
            lambda folder, images, labels: files(folder, images, labels, "bmp", np.uint8),
            lambda folder, images, labels: files(folder, images, labels, "tif", np.uint16),
            lambda folder, images, labels: arrays(folder, images, labels, np.int64),
            lambda folder, images, labels: arrays(folder, images, labels, np.float32),
        ],
    ),
}


@pytest.mark.parametrize("case", FORMS)
def test_predict_equals_evaluate_in_every_form(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    low, high, write, other_writers = FORMS[case]

    def data(folder: Path) -> None:
        for seed, part in enumerate(("train", "held")):
            write(folder / part, *pictures(low, high, seed))

    spec = SPEC.replace("image_size", f"pixel_range: [{low}, {high}], image_size") if high > 255 else SPEC
    run = train_case(Case(data, "", spec), tmp_path)
    images, labels = pictures(low, high, 1)
    results = []
    for number, form in enumerate([write, *other_writers]):
        path = form(tmp_path / f"new{number}", images, labels)
        output = tmp_path / f"{number}.jsonl"
        assert main.main(["predict", str(run.folder), str(path), "--output", str(output)]) == 0
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert (
            main.main(["evaluate", str(run.folder), "--data", str(path), "--output", str(tmp_path / f"{number}")]) == 0
        )
        metrics = json.loads((tmp_path / str(number) / "metrics.json").read_text())["metrics"]
        correct = [row["prediction"] == label for row, label in zip(rows, sorted(labels), strict=True)]
        assert metrics["accuracy"] == pytest.approx(np.mean(correct))
        results.append([(row["prediction"], pytest.approx(row["probability"], abs=0.02)) for row in rows])
    capsys.readouterr()
    for result in results[1:]:
        assert [(name, share.expected) for name, share in result] == results[0]
