"""Tables and images at an address, and jobs that read them there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drivetrain.data import load_data
from drivetrain.job import Job
from drivetrain.storage import stored_copy
from drivetrain.storage.object_store import Patience
from tests.object_store import FaultyStore
from tests.supervisor.remote_copy.fake_run import faulty_store, open_store

TABLE = """
name: t
task: tabular-classification
data: {{train: "{train}", target: y{data_keys}}}
model: {{name: mlp}}
train: {{epochs: 2, batch_size: 16}}
"""
IMAGES = """
name: p
task: image-classification
data: {{train: "{train}", image_size: 8}}
model: {{name: small-cnn, width: 4}}
"""


@contextmanager
def open_faulty_store(s3: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A store, and a cache of copies below the folder; nothing is waited for long."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv(stored_copy.FOLDERS, "{}")
    for name in ("PATIENCE", "HASTE"):
        monkeypatch.setattr(stored_copy, name, Patience(retries=1.5, silence=1.0, connect=1.0))
    with faulty_store(s3) as store:
        yield store


def write_table(path: Path, seed: int = 0, rows: int = 80) -> Path:
    values = np.random.default_rng(seed).normal(size=(rows, 2))
    lines = [f"{a:.5f},{b:.5f},{'yes' if a > b else 'no'}" for a, b in values]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


def write_photos(folder: Path, count: int = 6) -> Path:
    for split in ("train", "val", "test"):
        for label in ("bright", "dark"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((8, 8, 3), 40 * (label == "bright") + number, np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")
    return folder


def put_folder(prefix: str, folder: Path) -> None:
    store = open_store(prefix)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())


def write_spec(folder: Path, text: str, train: str, extra: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "t.yaml"
    path.write_text(text.format(train=train, data_keys=extra))
    return path


def load_content(job: Job) -> list[object]:
    """What a training would see of its data."""
    data = load_data.load(job)
    load_data.add_test(job, data)
    return [
        [
            [tensor.tolist() for tensor in split.gather(np.arange(len(split)))]
            for split in (data.train, data.validation)
        ],
        {name: values.tolist() for name, values in data.train.targets.items()},
        data.heads,
        [data.test.split.gather(np.arange(len(data.test.split)))[0].tolist()] if data.test else [],
    ]


class WebServer:
    """A web server with the files of a folder."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(QuietHandler, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass
