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
from drivetrain.supervisor.remote_copy.fetch_run import fetch_run
from drivetrain.supervisor.remote_copy.owner_file import OwnerFile, new_id
from drivetrain.supervisor.remote_copy.run_copy import RunCopy
from drivetrain.system.files import hash_file
from drivetrain.training.checkpoints.manifest import MANIFEST
from tests.object_store import FaultyStore, before

SHORT = Patience(retries=0.3, silence=1.0, connect=1.0)


@contextmanager
def faulty_store(server: str) -> Iterator[FaultyStore]:
    """The proxy, with its variables in the environment."""
    with before(server) as store, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in store.variables().items():
            patch.setenv(name, value)
        yield store


def opened(prefix: str, patience: Patience = SHORT) -> ObjectStore:
    return ObjectStore(parse(f"s3://bucket/{prefix}"), patience)


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text("name: parts\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / ".lock").write_text("")
    (folder / "ranks").mkdir()
    (folder / "ranks" / "log").write_text("x")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    state(folder, "running")
    return folder


def state(folder: Path, status: str) -> None:
    (folder / "state.json").write_text(json.dumps({"status": status}))


def checkpoint(run: Path, name: str, best: int | None = None, size: int = 2000) -> Path:
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


def owned(prefix: str, run: Path, writer: str = "") -> OwnerFile:
    """The owner file of a copy, taken by a new start."""
    file = OwnerFile(opened(prefix), writer or new_id())
    file.take(run)
    return file


def copy_of(prefix: str, run: Path, keep: int = 2, writer: str = "") -> RunCopy:
    """A folder and its copy, owned by a new start."""
    return RunCopy(owned(prefix, run, writer), run, keep)


def read_owner(store: ObjectStore) -> OwnerFile:
    file = OwnerFile(store, "")
    file.read()
    return file


def fetched(prefix: str, folder: Path) -> list[str]:
    """The run, brought to another disk without becoming its owner; what was reported."""
    lines: list[str] = []
    fetch_run(read_owner(opened(prefix)), folder, lines.append)
    return lines


def there(store: ObjectStore) -> list[str]:
    """The checkpoints of the copy."""
    return sorted(read_owner(store).owner.checkpoints)


def object_of(prefix: str, checkpoint: str, part: str) -> str:
    """The name of a part of a checkpoint in the store."""
    return f"checkpoints/{read_owner(opened(prefix)).owner.checkpoints[checkpoint].folder}/{part}"
