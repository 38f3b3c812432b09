"""A run folder with checkpoints of a few bytes, and a store for its copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse
from drivetrain.supervisor.remote_copy.remote_runs import fetch_run
from drivetrain.supervisor.remote_copy.run_copy import Attempt, RunCopy, find_whole, list_names
from drivetrain.system.files import hash_file
from drivetrain.system.run_records import RunState
from drivetrain.training.checkpoints.manifest import MANIFEST
from tests.object_store import FaultyStore, open_proxy

SHORT = Patience(retries=0.3, silence=1.0, connect=1.0)


@contextmanager
def faulty_store(server: str) -> Iterator[FaultyStore]:
    """The proxy, with its variables in the environment."""
    with open_proxy(server) as store, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in store.variables().items():
            patch.setenv(name, value)
        yield store


def open_store(prefix: str, patience: Patience = SHORT) -> ObjectStore:
    return ObjectStore(parse(f"s3://bucket/{prefix}"), patience)


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text("name: parts\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / ".lock").write_text("")
    (folder / "ranks").mkdir()
    (folder / "ranks" / "log").write_text("x")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    write_state(folder, "running")
    return folder


def write_state(folder: Path, status: str) -> None:
    (folder / "state.json").write_text(json.dumps({"status": status, "key": RunState.read(folder).key}))


def write_checkpoint(run: Path, name: str, best: int | None = None, size: int = 2000) -> Path:
    """A checkpoint that matches its manifest."""
    folder = run / "checkpoints" / name
    folder.mkdir(parents=True)
    watch = {"best": {"best": None if best is None else 0.5, "step": best or 0}}
    (folder / "state.json").write_text(json.dumps({"watch": watch, "name": name}))
    (folder / "model.safetensors").write_bytes(name.encode() * (size // len(name)))
    (folder / "optimizer.safetensors").write_bytes(name.encode() * 10)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": hash_file(p)} for p in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}))
    return folder


def begin(prefix: str, run: Path) -> Attempt:
    """A new attempt at writing a copy."""
    return Attempt(open_store(prefix), run)


def open_copy(prefix: str, run: Path, keep: int = 2) -> RunCopy:
    """A folder and its copy, which a new attempt writes."""
    return RunCopy(begin(prefix, run), run, keep)


def fetch_copy(prefix: str, folder: Path) -> list[str]:
    """The run, brought to another disk without a new attempt; what was reported."""
    return fetch_run(open_store(prefix), folder)


def list_checkpoints(store: ObjectStore) -> list[str]:
    """The whole checkpoints of the copy."""
    names = list_names(store)
    return sorted({folder.partition("/")[2] for kind in ("step", "best") for folder in find_whole(names, kind)})


def object_of(prefix: str, checkpoint: str, part: str) -> str:
    """The name of a part of a checkpoint in the store, as the newest attempt has sent it."""
    folders = find_whole(list_names(open_store(prefix)), checkpoint.partition("-")[0])
    return f"checkpoints/{max(folder for folder in folders if folder.endswith(f'/{checkpoint}'))}/{part}"
