"""A folder of images, and the cache of their pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from drivetrain.tasks.image import image_files
from drivetrain.tasks.image.image_files import Decoded

COUNT = 24


def write_images(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        class_folder = folder / "pictures" / "abc"[number % 3]
        class_folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 90, (30 + number, 41, 3)) + 80 * (number % 3)
        Image.fromarray(pixels.astype(np.uint8)).save(class_folder / f"{number:02}.{'jpg' if number % 2 else 'png'}")
    return folder / "pictures"


def list_images(folder: Path, size: int = 12) -> image_files.Files:
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return image_files.check_images(str(folder), names)[0].fit_to(size, 3)


def keep_pixels(images: image_files.Files, folder: Path, max_bytes: int = 1 << 30) -> Decoded:
    return image_files.cache_decoded(images, folder / "cache", max_bytes)
