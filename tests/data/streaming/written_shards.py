"""Images, and the shards that the command writes of them."""

from __future__ import annotations

from pathlib import Path

from drivetrain.data.streaming import write_shards
from tests.data.streaming import shards

SIZE = 60_000


def write_images(root: Path, count: int = 150) -> Path:
    for number in range(count):
        class_folder = root / ("dark", "bright")[number % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / f"x.{number:03}.png").write_bytes(shards.encode_png(number, 20))
    return root


def write_image_shards(source: Path, target: Path, seed: int = 0, form: str = "tar") -> list[str]:
    lines: list[str] = []
    write_shards.write(source, write_shards.open_destination(str(target)), SIZE, seed, lines.append, form)
    return lines
