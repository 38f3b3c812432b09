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

from drivetrain.storage.object_store import PART_BYTES
from drivetrain.storage.remote_address import parse
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.training.checkpoints.manifest import verify
from tests.object_store import Fault, FaultyStore
from tests.paths import ROOT
from tests.supervisor.remote_copy.fake_run import a_run, checkpoint, opened, state, there

KINDS = ("gone", "lost")
"""The last request is not carried out; it is, and its answer is lost."""
LONG = PART_BYTES + 1000


@dataclass
class Killing:
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


def machine(folder: Path, place: str) -> RemoteRuns:
    job = SimpleNamespace(name="parts", checkpoint=SimpleNamespace(keep=1))
    return RemoteRuns(folder, cast(Any, job), parse(f"s3://bucket/{place}"))


def trained_on(folder: Path, step: int, status: str) -> None:
    """What a trainer would have written by then; the first steps are there already."""
    if not folder.exists():
        a_run(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    checkpoint(folder, f"best-{step}", size=LONG)
    checkpoint(folder, f"step-{step}", best=step, size=LONG)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\n")
    state(folder, status)


def copied(runs: RemoteRuns, folder: Path) -> int:
    """Copy a folder to the end of its run."""
    try:
        runs.start_copying(folder)
        return runs.finish(folder, 0)
    finally:
        runs.release()


def killed(proxy: FaultyStore, home: Path, place: str, number: int, kind: str) -> Killing:
    """A machine whose copy is killed at its n-th request, after a first checkpoint is there whole."""
    one = home / "one" / "parts-001"
    trained_on(one, 10, "running")
    assert copied(machine(one.parent, place), one) == 0
    trained_on(one, 20, "done")
    killing = Killing(proxy, number, kind)
    proxy.fault = killing
    words = [sys.executable, "-m", "tests.supervisor.remote_copy.test_killed_copies", str(one), place]
    with subprocess.Popen(words, cwd=ROOT) as process:
        killing.process = process
        assert process.wait(120) in (0, -signal.SIGKILL)
    proxy.fault = lambda *_: None
    shutil.rmtree(one.parent)
    return killing


def resumes(proxy: FaultyStore, home: Path, place: str, where: str) -> None:
    """On an empty disk there is one checkpoint and its best one, both whole; the rest is sent from there."""
    two = home / "two"
    runs = machine(two, place)
    try:
        runs.fetch_unfinished()
    finally:
        runs.release()
    folder = two / "parts-001"
    finished = not folder.exists()  # a finished run is not brought back
    if finished:
        assert b'"done"' in opened(f"{place}/parts-001").get("state.json"), where
    else:
        found = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert found in (["best-10", "step-10"], ["best-20", "step-20"]), where
        assert [verify(folder / "checkpoints" / name) for name in found] == [None, None], where
        rows = (folder / "metrics.jsonl").read_text()
        assert '"step": 10' in rows, where
        assert found[1] != "step-20" or '"step": 20' in rows, f"{where}: rows are there before the checkpoint"
        trained_on(folder, 20, "done")
        assert copied(machine(two, place), folder) == 0, where
    assert there(opened(f"{place}/parts-001")) == ["best-20", "step-20"], where
    left = [each.name for each in opened(f"{place}/parts-001").objects("checkpoints") if "-10/" in each.name]
    assert left == [] or finished, where


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_request_of_the_copy(proxy: FaultyStore, tmp_path: Path, kind: str) -> None:
    """The whole enumeration, until a copy ends before its turn comes."""
    seen = []
    for number in itertools.count(1):
        place = f"every-{kind}-{number}"
        killing = killed(proxy, tmp_path / place, place, number, kind)
        resumes(proxy, tmp_path / place, place, f"{kind} {number}: {killing.last}")
        shutil.rmtree(tmp_path / place)
        if not killing.last:
            break
        seen.append(killing.last)
        print(f"{kind} {number}: {killing.last}", flush=True)
    assert len(seen) > 25
    assert any("uploadId" in each and each.startswith("PUT") for each in seen), "parts of an upload are among them"
    assert any("MANIFEST.json" in each and each.startswith("PUT") for each in seen)


@pytest.mark.parametrize(("number", "kind"), [(9, "gone"), (17, "lost")])
def test_killed_at_some_requests_of_the_copy(proxy: FaultyStore, tmp_path: Path, number: int, kind: str) -> None:
    place = f"some-{kind}"
    killing = killed(proxy, tmp_path, place, number, kind)
    assert killing.last
    resumes(proxy, tmp_path, place, killing.last)


if __name__ == "__main__":
    sys.exit(copied(machine(Path(sys.argv[1]).parent, sys.argv[2]), Path(sys.argv[1])))
