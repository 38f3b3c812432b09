"""Images that are not square: cropped, padded or squashed, the same from files and arrays, in training and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import saved_model
from drivetrain.tasks.image import decode, image_files, npz_images
from drivetrain.tasks.image.resize import Resize
from tests.messages import begins_with
from tests.task_cases import Case, train_case

FITS = ("crop", "pad", "squash")


def bands(wide: bool) -> np.ndarray:
    """Four bands of 10 pixels, left to right or top to bottom, of 40 by 20 pixels."""
    values = np.repeat(np.array([50, 100, 150, 200], np.uint8), 10)
    picture = np.broadcast_to(values, (20, 40)) if wide else np.broadcast_to(values[:, None], (40, 20))
    return np.ascontiguousarray(picture)


def expect_values(fit: str, wide: bool) -> list[int]:
    """Grey values along the middle of the long side, and across it at both ends, of the square of 20 pixels."""
    return {"crop": [100, 150, 150, 150], "pad": [50, 200, 0, 0], "squash": [50, 200, 150, 150]}[fit]


def read_values(square: np.ndarray, wide: bool) -> list[int]:
    square = square if wide else square.T
    return [int(square[10, 2]), int(square[10, 17]), int(square[1, 12]), int(square[18, 12])]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("fit", FITS)
def test_fit_of_a_long_image(tmp_path: Path, fit: str, wide: bool) -> None:
    Image.fromarray(bands(wide)).save(tmp_path / "x.png")
    from_file = decode.pixels(str(tmp_path / "x.png"), 20, 1, Resize(fit))[0]  # type: ignore[arg-type]
    assert read_values(from_file, wide) == expect_values(fit, wide)
    from_array = npz_images.square(torch.from_numpy(bands(wide))[None, None], 20, 1, Resize(fit))[0, 0]  # type: ignore[arg-type]
    assert read_values(from_array.numpy(), wide) == expect_values(fit, wide)
    assert np.abs(from_file.astype(int) - from_array.numpy()).max() <= 2


def folders(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(24):
        class_folder = folder / ("held" if number % 3 == 0 else "train") / "ab"[number % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        shape = (24, 24, 3) if number < 6 else (20, 44, 3)
        Image.fromarray(generator.integers(0, 120, shape).astype(np.uint8) + 100 * (number % 2)).save(
            class_folder / f"{number}.png"
        )


CASE = "task: image-classification\ndata: {{train: train, validation: held, image_size: 16, fit: {fit}}}\nmodel: {{name: small-cnn, width: 4}}\n"


@pytest.mark.parametrize("fit", FITS)
def test_it_is_noted_and_a_prediction_does_the_same(tmp_path: Path, fit: str) -> None:
    training = train_case(Case(folders, "", CASE.format(fit=fit)), tmp_path)
    (note,) = [note for note in training.dataset.notes if "not square" in note]
    assert begins_with(note, "of-images-are-not-square", 12, 16)
    assert f"data.fit: {fit}" in note
    model = saved_model.load(tmp_path / "run")
    assert model.preprocessing["fit"] == fit
    new_data = load_data.load_new([tmp_path / "held"], model.preprocessing, model.heads, labelled=True)
    ids = np.arange(8)
    assert torch.equal(new_data.split.gather(ids)[0], training.dataset.validation.gather(ids)[0])


def test_the_cache_of_decoded_images_tells_them_apart(tmp_path: Path) -> None:
    folders(tmp_path)
    caches = []
    for fit in FITS:
        (tmp_path / "job.yaml").write_text(f"name: t\n{CASE.format(fit=fit)}")
        images = load(job_spec.load(tmp_path / "job.yaml")).train.images  # type: ignore[attr-defined]
        caches.append(image_files.cache_decoded(images, tmp_path / "cache", 1 << 30))
    rows = np.arange(16)
    assert len({cache.path for cache in caches}) == 3
    assert all(torch.equal(cache.gather(rows), cache.files.gather(rows)) for cache in caches)
