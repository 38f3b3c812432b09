"""A data set on a hub, and the job that trains on it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource

NAME = "casa/frases"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
SPEC = """
name: frases
task: text-classification
data: {{train: '{train}', text: text, labels: label{data_keys}}}
model: {{name: encoder, layers: 1, width: 16, heads: 2, vocabulary: 200}}
train: {{epochs: 2, batch_size: 8}}
checkpoint: {{every: epoch}}
optimize: {{cpu_threads: 1}}
"""
README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
---
# Frases
"""


def table(rows: int, start: int = 0, **features: object) -> bytes:
    """Rows of a text and a class number, as Parquet."""
    text_table = pyarrow.table(
        {
            "text": [f"{'malo' if i % 2 else 'bueno'} caso {i}" for i in range(start, start + rows)],
            "label": [i % 2 for i in range(start, start + rows)],
        }
    )
    if features:
        text_table = text_table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    buffer = io.BytesIO()
    parquet.write_table(text_table, buffer)
    return buffer.getvalue()


FILES = {
    "README.md": README.encode(),
    ".gitattributes": b"x",
    "data/train-00000-of-00002.parquet": table(24),
    "data/train-00001-of-00002.parquet": table(16, 24),
    "data/test-00000-of-00001.parquet": table(10, 100),
    "notes.csv": b"a,b\n1,2\n",
}
NEEDED = sorted(name for name in FILES if name.startswith(("data/", "README")))


def write_spec(folder: Path, train: str = f"hf://datasets/{NAME}", settings: str = "") -> Path:
    path = folder / "job.yaml"
    path.write_text(SPEC.format(train=train, data_keys=settings))
    return path


def load_job(folder: Path, train: str = f"hf://datasets/{NAME}", settings: str = "") -> Job:
    """The job, with its data downloaded."""
    return SpecSource(write_spec(folder, train, settings)).load()


def catch_spec_error(folder: Path, train: str = f"hf://datasets/{NAME}", settings: str = "") -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_job(folder, train, settings)
    return caught.value


def repository_cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hub" / "datasets--casa--frases"
