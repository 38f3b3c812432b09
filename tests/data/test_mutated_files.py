"""Files of data of which a machine changed some bytes: each is read or refused in three parts, and nothing else is raised."""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drivetrain.data import load_data
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job

PIECES = (
    b'"',
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"1e400",
    b"nan",
    b"-9999",
    b"\\",
    b"=1+1",
)
"""What means something in a text of rows."""


def write_table(folder: Path) -> Path:
    draw = random.Random(0)
    rows = [f"{draw.gauss(0, 1):.3f},{'uvw'[i % 3]},2025-01-{i % 28 + 1:02},{'pq'[i % 2]}" for i in range(60)]
    (folder / "rows.csv").write_text("\n".join(["a,k,day,y", *rows]) + "\n")
    return folder / "rows.csv"


def write_photos(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    for name in "pq":
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(10):
            photo = Image.fromarray(draw.integers(0, 256, (24, 24, 3), dtype=np.uint8))
            photo.save(folder / "photos" / name / f"{i}.jpg")
    return folder / "photos" / "p" / "3.jpg"


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Change, remove, repeat or insert up to four pieces, or cut the end off."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(changed) or 1)
        end = start + draw.randint(1, 40)
        match draw.randrange(6):
            case 0 if changed:
                changed[start] ^= 1 << draw.randrange(8)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = changed[start:end]
            case 3:
                changed[start:start] = draw.choice(PIECES)
            case 4:
                changed[start:end] = draw.randbytes(end - start)
            case _ if draw.random() < 0.3:
                del changed[start:]
    return bytes(changed)


KINDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "csv": (
        write_table,
        "tabular-classification\ndata: {train: rows.csv, target: y, dates: {day: [month, weekday]}, validation: 0.25}",
    ),
    "jpeg": (
        write_photos,
        "image-classification\ndata: {train: photos, validation: 0.25, image_size: 16, bad_samples: 0}",
    ),
}


def read(job: Path) -> str:
    """Read every sample; the error, if there is one that we expect. A warning of a library is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = load_data.load(load_job.load(job))
            for split in filter(None, (data.train, data.validation)):
                split.gather(np.arange(len(split)))
    except (DataError, SpecError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused(tmp_path: Path, kind: str, count: int) -> None:
    write, spec = KINDS[kind]
    path = write(tmp_path)
    content = path.read_bytes()
    (tmp_path / "job.yaml").write_text(f"name: t\ntask: {spec}\n")
    draw = random.Random(count)
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(count):
        path.write_bytes(mutate(content, draw))
        error = read(tmp_path / "job.yaml")
        if error:
            assert path.name in error or "data" in error
            assert all(error.count(f"\n  {word}:") == 1 for word in ("possible", "do"))
        outcomes["refused" if error else "read"] += 1
    print(dict(outcomes))
    assert min(outcomes["refused"], outcomes["read"]) > count // 20
