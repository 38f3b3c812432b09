"""The same rows as tables, series, arrays and pictures, for codes such as -9999 in one of their cells."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

Numbers = Any


def make_rows(count: int = 1000, seed: int = 0) -> dict[str, Numbers]:
    draw = np.random.default_rng(seed)
    # It changes with each ten rows, which are a window, or a picture.
    a = draw.normal(20, 3, count // 10).repeat(10) + draw.normal(0, 0.3, count)
    number = 1000 + 30 * a + draw.normal(0, 5, count)
    return {"t": np.arange(count), "a": a, "b": draw.random(count), "n": number, "y": np.where(a > 20, "on", "off")}


def write_pictures(folder: Path, brightness: Numbers) -> list[str]:
    """Write a noisy picture for each tenth number; returns their paths in the manifest."""
    folder.mkdir(exist_ok=True)
    noise = np.random.default_rng(int(brightness[0] * 1e6))
    names = []
    for number, level in enumerate(brightness[9::10]):
        pixels = (level * 6 + noise.normal(0, 10, (8, 8))).clip(0, 255).astype(np.uint8)
        name = f"{noise.bytes(8).hex()}-{number}.png"
        Image.fromarray(pixels).save(folder / name)
        names.append(f"{folder.name}/{name}")
    return names


def write(path: Path, rows: dict[str, Numbers]) -> str:
    """Write a table; of each ten rows a window with the label of its last row; or a picture whose brightness is `a`."""
    if path.name == "pictures.csv":
        names = write_pictures(path.parent / "pictures", rows["a"])
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("path", "n"), *zip(names, rows["n"][9::10], strict=True)])
    elif path.suffix == ".npz":
        x = np.stack([rows["a"], rows["b"]], axis=1).reshape(-1, 10, 2)
        np.savez(path, x=x, y=rows["n"][9::10] if path.stem == "numbers" else (rows["y"][9::10] == "on").astype(int))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(rows), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])
    return str(path)


LONG = {"time": "t", "window": 10}
TASKS: dict[str, tuple[str, str, dict[str, object]]] = {
    "table, classes": ("tabular-classification", "a.csv", {"target": "y", "features": ["a", "b"]}),
    "table, numbers": ("tabular-regression", "a.parquet", {"target": "n", "features": ["a", "b"]}),
    "series, classes": ("series-classification", "a.csv", {**LONG, "label": "y", "features": ["a", "b"]}),
    "series, numbers": ("series-regression", "a.parquet", {**LONG, "label": "n", "features": ["a", "b"]}),
    "arrays, classes": ("series-classification", "classes.npz", {}),
    "arrays, numbers": ("series-regression", "numbers.npz", {}),
    "pictures, numbers": ("image-regression", "pictures.csv", {"label_column": "n", "image_size": 8}),
}
