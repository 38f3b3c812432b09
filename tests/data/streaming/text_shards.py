"""Small Parquet shards of texts with two labels, and jobs that stream them."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from tests.data.streaming.shards import add_member

WORDS = {"good": ("fine", "lovely", "great", "warm"), "bad": ("awful", "cold", "broken", "late")}
JOB = """
name: t
task: text-classification
data: {{train: {train}, text: {text}, labels: {labels}{stream}{data}}}
model: {{name: encoder, layers: 1, width: 16, heads: 2, vocabulary: 200}}
train: {{epochs: {epochs}, batch_size: 12, optimizer: {{lr: 0.01}}}}
"""
STREAM = ", stream: {streams: 4, window: 2}"


def text(number: int) -> str:
    """A text whose words tell its label, of 3 to 40 words."""
    random = np.random.default_rng(number)
    chosen_words = random.choice(WORDS[label(number)], random.integers(3, 40))
    return f"{number} " + " ".join(chosen_words)


def label(number: int) -> str:
    return ("good", "bad")[number % 2]


def make_table(numbers: Sequence[int]) -> pyarrow.Table:
    return pyarrow.table(
        {
            "id": list(numbers),
            "title": [f"note {number}" for number in numbers],
            "text": [text(number) for number in numbers],
            "label": [label(number) for number in numbers],
            "stars": [number % 3 for number in numbers],
        }
    )


def write_shards(root: Path, shards: int = 12, rows: int = 10, ending: str = ".parquet") -> Path:
    """Shards of texts 0, 1, 2 and so on; the last one is smaller."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        count = rows if number < shards - 1 else rows - 3
        write_shard(root / f"{number:04}{ending}", make_table(range(number * rows, number * rows + count)))
    return root


def write_shard(path: Path, rows: pyarrow.Table) -> None:
    """A shard of the kind that its name says; a tar has .txt and .json, as most people write them."""
    lines = "".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()).encode()
    if path.name.endswith(".parquet"):
        parquet.write_table(rows, path)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines))
    elif path.name.endswith(".zst"):
        path.write_bytes(pyarrow.compress(lines, "zstd", asbytes=True))
    elif path.name.endswith(".jsonl"):
        path.write_bytes(lines)
    else:
        with tarfile.open(path, "w") as file:
            for row in rows.to_pylist():
                name = f"a/{row['id']:06}"
                add_member(file, f"{name}.txt", row.pop("text").encode())
                add_member(file, f"{name}.json", json.dumps(row).encode())


def job(
    path: Path,
    train: object,
    *,
    text: str = "text",
    labels: str = "[label, stars]",
    stream: str = STREAM,
    data: str = "",
    epochs: int = 2,
) -> Job:
    """A job in a file, read as the command line does."""
    path.mkdir(parents=True, exist_ok=True)
    extra_data_keys = data and f", {data}"
    spec = JOB.format(train=train, text=text, labels=labels, stream=stream, data=extra_data_keys, epochs=epochs)
    (path / "t.yaml").write_text(spec)
    return job_spec.load(path / "t.yaml")
