"""The process that copies is killed at each of its requests, with its machine: another one resumes on an empty disk.

Each request in turn is the last, once before the store has carried it out and once after. The checkpoints are long
enough for uploads in parts.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drivetrain.storage.object_store import CHUNK_BYTES, Patience
from drivetrain.storage.remote_address import parse
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.training.checkpoints.manifest import verify
from tests.object_store import Fault, FaultyStore
from tests.paths import ROOT
from tests.supervisor.remote_copy.fake_run import list_checkpoints, make_run, open_store, write_checkpoint, write_state

KINDS = ("gone", "lost")
"""The last request is not carried out; it is, and its answer is lost."""
LONG = CHUNK_BYTES + 1000


@dataclass
class RequestKiller:
    """Kills a process at its n-th request, and counts them."""

    proxy: FaultyStore
    number: int
    kind: str
    process: subprocess.Popen[bytes] | None = None
    count: int = 0
    last: str = ""

    def __call__(self, _: int, method: str, path: str) -> Fault | None:
        if self.process is None:
            return None
        self.count += 1
        if self.count < self.number:
            return None
        if self.count == self.number:
            self.last = f"{method} {path}"
            os.kill(self.process.pid, signal.SIGKILL)
            return Fault(self.kind)
        return Fault("gone")


def remote_runs(folder: Path, prefix: str) -> RemoteRuns:
    job = SimpleNamespace(name="parts", checkpoint=SimpleNamespace(keep=1))
    return RemoteRuns(folder, cast(Any, job), parse(f"s3://bucket/{prefix}"))


def write_training(folder: Path, step: int, status: str) -> None:
    """What a trainer would have written by then; the first steps are there already."""
    if not folder.exists():
        make_run(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    write_checkpoint(folder, f"best-{step}", size=LONG)
    write_checkpoint(folder, f"step-{step}", best=step, size=LONG)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\n")
    write_state(folder, status)


def copy_run(runs: RemoteRuns, folder: Path) -> int:
    """Copy a folder to the end of its run."""
    try:
        runs.start_copying(folder)
        return runs.finish(folder, 0)
    finally:
        runs.release()


def kill_copy(proxy: FaultyStore, home: Path, prefix: str, number: int, kind: str) -> RequestKiller:
    """A machine whose copy is killed at its n-th request, after a first checkpoint is there whole."""
    first_run = home / "one" / "parts-001"
    write_training(first_run, 10, "running")
    assert copy_run(remote_runs(first_run.parent, prefix), first_run) == 0
    write_training(first_run, 20, "done")
    killing = RequestKiller(proxy, number, kind)
    proxy.fault = killing
    command = [sys.executable, "-m", "tests.supervisor.remote_copy.test_killed_copies", str(first_run), prefix]
    with subprocess.Popen(command, cwd=ROOT) as process:
        killing.process = process
        assert process.wait(120) in (0, -signal.SIGKILL)
    proxy.fault = lambda *_: None
    shutil.rmtree(first_run.parent)
    return killing


def check_resumed(proxy: FaultyStore, home: Path, prefix: str, kill_point: str) -> None:
    """On an empty disk there is one checkpoint and its best one, both whole; the rest is sent from there."""
    second_disk = home / "two"
    runs = remote_runs(second_disk, prefix)
    try:
        runs.fetch_last(done=False)
    finally:
        runs.release()
    folder = second_disk / "parts-001"
    finished = not folder.exists()  # a finished run is not brought back
    store = open_store(f"{prefix}/parts-001", Patience())  # moto is slow on a busy machine
    if finished:
        assert b'"done"' in store.get("state.json"), kill_point
    else:
        names = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert names in (["best-10", "step-10"], ["best-20", "step-20"]), kill_point
        assert [verify(folder / "checkpoints" / name) for name in names] == [None, None], kill_point
        rows = (folder / "metrics.jsonl").read_text()
        assert '"step": 10' in rows, kill_point
        assert names[1] != "step-20" or '"step": 20' in rows, f"{kill_point}: rows are there before the checkpoint"
        write_training(folder, 20, "done")
        assert copy_run(remote_runs(second_disk, prefix), folder) == 0, kill_point
    assert list_checkpoints(store) == ["best-20", "step-20"], kill_point
    old_names = [stored_object.name for stored_object in store.objects("checkpoints") if "-10/" in stored_object.name]
    assert old_names == [] or finished, kill_point


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_request_of_the_copy(proxy: FaultyStore, tmp_path: Path, kind: str) -> None:
    """The whole enumeration, until a copy ends before its turn comes."""
    requests = []
    for number in itertools.count(1):
        prefix = f"every-{kind}-{number}"
        killing = kill_copy(proxy, tmp_path / prefix, prefix, number, kind)
        check_resumed(proxy, tmp_path / prefix, prefix, f"{kind} {number}: {killing.last}")
        shutil.rmtree(tmp_path / prefix)
        if not killing.last:
            break
        requests.append(killing.last)
        print(f"{kind} {number}: {killing.last}", flush=True)
    assert len(requests) > 25
    assert any("uploadId" in request and request.startswith("PUT") for request in requests), (
        "parts of an upload are among them"
    )
    assert any("MANIFEST.json" in request and request.startswith("PUT") for request in requests)


@pytest.mark.parametrize(("number", "kind"), [(9, "gone"), (17, "lost")])
def test_killed_at_some_requests_of_the_copy(proxy: FaultyStore, tmp_path: Path, number: int, kind: str) -> None:
    prefix = f"some-{kind}"
    killing = kill_copy(proxy, tmp_path, prefix, number, kind)
    assert killing.last
    check_resumed(proxy, tmp_path, prefix, killing.last)


if __name__ == "__main__":
    sys.exit(copy_run(remote_runs(Path(sys.argv[1]).parent, sys.argv[2]), Path(sys.argv[1])))
