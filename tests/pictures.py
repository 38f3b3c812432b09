"""Small images as files and arrays, the jobs that read them, and what a job that cannot is told."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.tasks.image.job import ImageClassificationJob, ImageJob

torch.set_num_threads(1)

SIDE = 32


def job(train: Path, *, seed: int = 0, **data: object) -> ImageJob:
    spec = {
        "name": "t",
        "task": "image-classification",
        "data": {"train": str(train), "validation": 0.25, **data},
        "train": {"seed": seed},
    }
    return ImageClassificationJob.model_validate(spec)


def write_npz(path: Path, images: Any, labels: Any, **other_arrays: Any) -> Path:
    np.savez_compressed(path, images=images, labels=labels, **other_arrays)
    return path


def make_noise(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def write_folder(root: Path, **classes: int) -> Path:
    """So many small images of each class."""
    for number, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (16, 16), 50 * number + i).save(root / name / f"{i:02}.png")
    return root


def read_refusal(image_job: ImageJob) -> str:
    with pytest.raises(DataError) as error:
        load(image_job)
    assert error.value.exit_code == 3
    assert "  possible: " in str(error.value)
    assert "  do: " in str(error.value)
    return str(error.value)


def make_image(colour: tuple[int, int, int] = (200, 40, 90), size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    return Image.new("RGB", size, colour)


def write_good_images(folder: Path, per_class: int = 8, classes: tuple[str, ...] = ("a", "b")) -> Path:
    """A folder of good images: class a is dark, class b is bright."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            make_image((40 + 100 * number + i,) * 3).save(folder / name / f"{i}.png")
    return folder


def write_truncated_jpeg(path: Path) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
