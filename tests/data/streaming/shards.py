"""Small shards of images, as tar and as Parquet, and jobs that stream them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec

JOB = """
name: t
task: image-classification
data: {{train: {train}, stream: {{streams: {streams}, window: {window}{stream}}}, image_size: 8{data}}}
model: {{name: small-cnn, width: 4}}
train: {{epochs: {epochs}, batch_size: 12{train_keys}}}
"""


def encode_png(number: int, side: int = 10) -> bytes:
    """A PNG that is different for each number; odd ones are bright."""
    pixels = np.random.default_rng(number).integers(0, 128, (side, side, 3)) + 127 * (number % 2)
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def add_member(file: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    file.addfile(member, io.BytesIO(content))


def write_tar(path: Path, numbers: Sequence[int], *, as_json: bool = False, side: int = 10) -> Path:
    with tarfile.open(path, "w") as file:
        for number in numbers:
            add_member(file, f"a/{number:05}.png", encode_png(number, side))
            label = ("dark", "bright")[number % 2]
            if as_json:
                add_member(file, f"a/{number:05}.json", json.dumps({"label": label, "n": number}).encode())
            else:
                add_member(file, f"a/{number:05}.cls", label.encode())
    return path


def write_table(path: Path, numbers: Sequence[int], *, side: int = 10, **options: Any) -> Path:
    cells = [{"bytes": encode_png(number, side), "path": f"{number}.png"} for number in numbers]
    labels = [("dark", "bright")[number % 2] for number in numbers]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    parquet.write_table(pyarrow.table({"image": pyarrow.array(cells, kind), "label": labels}), path, **options)
    return path


def write_shards(root: Path, suffix: str = ".tar", shards: int = 12, rows: int = 10, side: int = 10) -> Path:
    """Shards of images 0, 1, 2 and so on; the last one is smaller."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        count = rows if number < shards - 1 else rows - 3
        numbers = range(number * rows, number * rows + count)
        write = write_tar if suffix == ".tar" else write_table
        write(root / f"{number:04}{suffix}", numbers, side=side)
    return root


def job(
    path: Path,
    train: object,
    *,
    stream: str = "",
    data: str = "",
    epochs: int = 2,
    train_keys: str = "",
    streams: int = 4,
    window: int = 2,
) -> Job:
    """A job in a file, read as the command line does."""
    path.mkdir(parents=True, exist_ok=True)
    text = JOB.format(
        train=train,
        streams=streams,
        window=window,
        stream=stream and f", {stream}",
        data=data and f", {data}",
        epochs=epochs,
        train_keys=train_keys and f", {train_keys}",
    )
    (path / "t.yaml").write_text(text)
    return job_spec.load(path / "t.yaml")
