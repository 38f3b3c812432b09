"""Sample images: JPEG textures of mixed sizes in six classes, one folder each.

Only the pattern defines the class. Scale, direction, colors, light, warp, blur and noise are random, so that no color
and no single pixel reveals it; large checks look like gradients, fine dots like noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.float32]
"""Shape (height, width)."""
SIDE_RANGE = (200, 420)
"""Smallest and largest side, in pixels."""
PERIOD_RANGE = (20.0, 70.0)
"""Finest and coarsest pattern, in pixels."""
JPEG_QUALITY = 82


@dataclass(frozen=True)
class Canvas:
    """Warped and rotated coordinates of an image, in periods of its pattern, and a random generator for the rest."""

    x: Plane
    y: Plane
    rng: np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write `size` images, classes as balanced as possible, to `<class>/<class>-<number>.jpg`."""
    paths = []
    for number in range(size):
        name = list(PATTERNS)[number % len(PATTERNS)]
        path = folder / name / f"{name}-{number // len(PATTERNS):05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.blake2b(f"{seed}/sample/{name}/{number}".encode(), digest_size=8).digest()
        image = draw_texture(name, np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little") >> 1)))
        Image.fromarray(image).save(path, quality=JPEG_QUALITY)
        paths.append(path)
    return paths


def draw_texture(name: str, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """One image of a class, shape (height, width, 3)."""
    height, width = (int(side) for side in rng.integers(*SIDE_RANGE, size=2, endpoint=True))
    canvas = _draw_canvas(height, width, rng)
    pattern = _blur_some(PATTERNS[name](canvas), rng)
    dark, bright = _draw_colors(rng)
    light = 1 + rng.uniform(0.1, 0.3) * np.cos(_draw_ramp(height, width, rng))
    shade = (dark + pattern[..., None] * (bright - dark)) * light[..., None]
    grain = rng.standard_normal((height, width), dtype=np.float32) * rng.uniform(2, 16)
    return np.clip(shade + grain[..., None], 0, 255).astype(np.uint8)


def _draw_canvas(height: int, width: int, rng: np.random.Generator) -> Canvas:
    period = float(np.exp(rng.uniform(*np.log(PERIOD_RANGE))))
    angle = rng.uniform(0, np.pi)
    down, across = np.mgrid[:height, :width].astype(np.float32)
    x = (np.cos(angle) * across + np.sin(angle) * down) / np.float32(period) + rng.random(dtype=np.float32)
    y = (np.cos(angle) * down - np.sin(angle) * across) / np.float32(period) + rng.random(dtype=np.float32)
    strength, wave = np.float32(rng.uniform(0, 0.2)), np.float32(rng.uniform(0.5, 1.5))
    return Canvas(x + strength * np.sin(wave * y), y + strength * np.sin(wave * x), rng)


def _stripes(canvas: Canvas) -> Plane:
    return _wave(canvas.x)


def _checks(canvas: Canvas) -> Plane:
    half = np.float32(0.5)
    return np.asarray(np.abs(np.rint(_wave(canvas.x * half)) - _wave(canvas.y * half)), np.float32)


def _dots(canvas: Canvas) -> Plane:
    """A grid of discs with random offsets."""
    row, column = np.floor(canvas.y).astype(np.int64), np.floor(canvas.x).astype(np.int64)
    moves = canvas.rng.uniform(-0.18, 0.18, size=(2, 64, 64)).astype(np.float32)
    x, y = (
        value - np.floor(value) - 0.5 - move[row % 64, column % 64]
        for value, move in zip((canvas.x, canvas.y), moves, strict=True)
    )
    radius = np.float32(canvas.rng.uniform(0.2, 0.32))
    return _step(radius - np.hypot(x, y), 0.06)


def _rings(canvas: Canvas) -> Plane:
    """Rings around a point near the center of the image."""
    x, y = (
        value - np.float32(value.min() + canvas.rng.uniform(0.3, 0.7) * (value.max() - value.min()))
        for value in (canvas.x, canvas.y)
    )
    return _wave(np.asarray(np.hypot(x, y), np.float32))


def _gradients(canvas: Canvas) -> Plane:
    """Two slow ramps, superposed."""
    height, width = canvas.x.shape
    ramps = [np.sin(_draw_ramp(height, width, canvas.rng)) for _ in range(2)]
    return np.asarray(0.5 + 0.3 * ramps[0] + 0.2 * ramps[1], np.float32)


def _noise(canvas: Canvas) -> Plane:
    """Random values on a grid with the pattern's period, interpolated."""
    x, y = canvas.x, canvas.y
    cells = canvas.rng.random((64, 64), dtype=np.float32)
    row, column = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    down, across = _ease(y - row), _ease(x - column)
    corners = [cells[(row + i) % 64, (column + j) % 64] for i in (0, 1) for j in (0, 1)]
    top, bottom = (corners[i] + across * (corners[i + 1] - corners[i]) for i in (0, 2))
    return np.asarray(top + down * (bottom - top), np.float32)


PATTERNS: dict[str, Callable[[Canvas], Plane]] = {
    "checks": _checks,
    "dots": _dots,
    "gradients": _gradients,
    "noise": _noise,
    "rings": _rings,
    "stripes": _stripes,
}


def _wave(x: Plane) -> Plane:
    """A smoothed square wave of period 1, from 0 to 1."""
    return _step(np.sin(np.float32(2 * np.pi) * x), 0.5)


def _step(x: Plane, width: float) -> Plane:
    """A smooth step from 0 to 1 at zero, over about `width`."""
    return np.asarray(0.5 + 0.5 * np.tanh(x / np.float32(width)), np.float32)


def _ease(x: npt.NDArray[np.floating]) -> Plane:
    return np.asarray(x * x * (3 - 2 * x), np.float32)


def _draw_ramp(height: int, width: int, rng: np.random.Generator) -> Plane:
    """A linear ramp across the image, by about half a period to one and a half."""
    angle, turns = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 1.5) * np.pi
    down = np.linspace(0, np.sin(angle) * turns, height, dtype=np.float32)
    across = np.linspace(0, np.cos(angle) * turns, width, dtype=np.float32)
    return np.asarray(down[:, None] + across + np.float32(rng.uniform(0, 2 * np.pi)), np.float32)


def _blur_some(pattern: Plane, rng: np.random.Generator) -> Plane:
    """Blur half of the images a little, by resizing down and up."""
    if rng.random() < 0.5:
        return pattern
    height, width = pattern.shape
    small = Image.fromarray(pattern).resize((width // 3, height // 3), Image.Resampling.BILINEAR)
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.float32)


def _draw_colors(rng: np.random.Generator) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Two colors at some distance, in random order."""
    middle = rng.uniform(70, 185, 3)
    direction = rng.standard_normal(3)
    half = rng.uniform(25, 80) * direction / np.linalg.norm(direction)
    return (middle - half).astype(np.float32), (middle + half).astype(np.float32)
