"""The copy in the store may be the only good one: nothing takes it away, neither a resume nor a writer cut off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drivetrain.errors import Busy, CheckpointError
from drivetrain.storage.remote_address import parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy import copy_child, run_copy, writer_lock
from drivetrain.supervisor.remote_copy.copy_child import CopyChild
from drivetrain.supervisor.remote_copy.copy_process import Copying
from drivetrain.supervisor.remote_copy.copy_record import CopyRecord, of_store
from drivetrain.supervisor.remote_copy.fetch_run import fetch_run
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.supervisor.remote_copy.run_copy import LostLock, RunCopy
from drivetrain.supervisor.remote_copy.run_files import is_gone
from drivetrain.supervisor.remote_copy.writer_lock import WriterLock
from drivetrain.system import file_lock
from drivetrain.training.checkpoints.manifest import verify
from tests.object_store import FaultyStore
from tests.supervisor.remote_copy.fake_run import a_run, checkpoint, opened, state, there


def runs_at(folder: Path, place: str) -> RemoteRuns:
    job = SimpleNamespace(name="parts", checkpoint=SimpleNamespace(keep=2))
    return RemoteRuns(folder, cast(Any, job), parse(f"s3://bucket/{place}"))


def recorded(run: Path, place: str, identity: str = "one", writer: str = "a") -> Path:
    CopyRecord(identity, f"s3://bucket/{place}/{run.name}", writer).write(run)
    return run


def locked(place: str, writer: str, before: str | None = None) -> WriterLock:
    lock = WriterLock(opened(place), writer)
    lock.acquire(before, print)
    return lock


def tags(place: str, below: str = "") -> list[tuple[str, str]]:
    return [(each.name, each.tag) for each in opened(place).objects(below)]


def test_a_process_that_is_killed_alone_is_replaced(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be copied for the rest of a training, and another machine would take the run for dead."""
    ours = runs_at(run.parent, "alone")
    ours.begin(run)
    child = ours.child
    assert child is not None
    first = child.process.pid
    child.process.kill()
    end = time.monotonic() + 60
    while child.process.pid == first:
        assert time.monotonic() < end
        time.sleep(0.05)
    checkpoint(run, "step-100")
    state(run, "done")
    assert ours.finish(run, 0) == 0
    assert there(opened("alone/parts-001")) == ["step-100"]
    events = [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events == ["the process that copies has ended (signal 9); another one goes on"]


def test_a_process_that_is_killed_at_the_end_is_replaced(proxy: FaultyStore, run: Path) -> None:
    checkpoint(run, "step-100")
    state(run, "done")
    ours = runs_at(run.parent, "atend")
    ours.begin(run)
    assert ours.child is not None
    os.kill(ours.child.process.pid, signal.SIGKILL)
    ours.child.process.wait()
    assert ours.finish(run, 0) == 0
    assert there(opened("atend/parts-001")) == ["step-100"]


def test_a_process_that_is_stopped_does_not_hold_the_end_of_a_run(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_child, "SILENT_SECONDS", 2.0)
    ours = runs_at(run.parent, "held")
    ours.begin(run)
    child = ours.child
    assert child is not None
    os.kill(child.process.pid, signal.SIGSTOP)
    assert ours.finish(run, 0) == 7
    assert child.process.returncode == -signal.SIGKILL


def changes(proxy: FaultyStore) -> list[tuple[str, str]]:
    return [each for each in proxy.seen if each[0] != "GET" and each[0] != "HEAD" and "checkpoints" in each[1]]


def test_a_resume_does_not_touch_the_checkpoint_it_came_from(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    checkpoint(run, "best-50")
    checkpoint(run, "step-100", best=50)
    RunCopy(opened("resume"), run, 1).send()
    fetch_run(opened("resume"), tmp_path / "elsewhere", print)
    proxy.seen.clear()
    copy = RunCopy(opened("resume"), tmp_path / "elsewhere", 1)
    copy.send()
    assert changes(proxy) == []
    assert copy.missing() == []


@pytest.mark.parametrize("part", ["MANIFEST.json", "model.safetensors"])
def test_a_copy_that_differs_is_sent_again(proxy: FaultyStore, run: Path, tmp_path: Path, part: str) -> None:
    place = f"differs-{part[:5].lower()}"
    checkpoint(run, "step-100")
    RunCopy(opened(place), run, 1).send()
    opened(place).put(f"checkpoints/step-100/{part}", b"{}")
    RunCopy(opened(place), run, 1).send()
    fetch_run(opened(place), tmp_path / "elsewhere", print)
    assert verify(tmp_path / "elsewhere" / "checkpoints" / "step-100") is None


def test_a_run_that_another_machine_finished_meanwhile_is_not_written_over(
    proxy: FaultyStore, run: Path, tmp_path: Path
) -> None:
    ours = runs_at(run.parent, "race")
    assert ours.names == []
    other = recorded(a_run(tmp_path / "elsewhere" / "parts-001"), "race", "two", "b")
    checkpoint(other, "step-900")
    state(other, "done")
    lock = locked("race/parts-001", "b")
    RunCopy(opened("race/parts-001"), other, 2).send()
    lock.release()
    try:
        with pytest.raises(CheckpointError, match="two different runs"):
            ours.begin(run)
    finally:
        if ours.child:
            ours.child.cancel()
        ours.leave()
    record = of_store(opened("race/parts-001"))
    assert record is not None
    assert record.run == "two"
    assert not opened("race/parts-001").exists(writer_lock.FILE)


def test_a_damaged_local_checkpoint_does_not_hide_the_good_one_in_the_store(proxy: FaultyStore, run: Path) -> None:
    recorded(run, "hidden")
    path = checkpoint(run, "step-100")
    RunCopy(opened("hidden/parts-001"), run, 1).send()
    (path / "model.safetensors").write_bytes(b"x")
    ours = runs_at(run.parent, "hidden")
    ours.continue_last()
    ours.leave()
    assert verify(path) is None


@pytest.mark.parametrize("damage", ["other bytes", "cut", "no manifest worth its name"])
def test_a_damaged_checkpoint_in_the_store_does_not_hide_the_good_one_here(
    proxy: FaultyStore, run: Path, damage: str
) -> None:
    place = f"worse-{damage[:3]}"
    recorded(run, place)
    copy = RunCopy(opened(f"{place}/parts-001"), run, 2)
    for step in (100, 200):
        path = checkpoint(run, f"step-{step}", size=3000)
        copy.send()
    large = "checkpoints/step-200/model.safetensors"
    length = (path / "model.safetensors").stat().st_size
    match damage:
        case "other bytes":
            opened(f"{place}/parts-001").put(large, b"x" * length)
        case "cut":
            opened(f"{place}/parts-001").put(large, b"x")
        case _:
            opened(f"{place}/parts-001").put("checkpoints/step-200/MANIFEST.json", b"\xff{")
    shutil.rmtree(path)
    here = checkpoint(run, "step-150")
    number = here.stat().st_ino
    proxy.seen.clear()
    ours = runs_at(run.parent, place)
    ours.continue_last()
    ours.leave()
    assert here.stat().st_ino == number, "the folder is left as it is: step-100 of the store is older"
    assert (any(large in path for _, path in proxy.seen)) == (damage == "other bytes"), "found before it is downloaded"
    texts = [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert "checkpoint step-200 is damaged: " in texts[0]
    assert texts[1].endswith("using step-150, which is on this disk")


def test_a_good_local_checkpoint_is_not_downloaded(proxy: FaultyStore, run: Path) -> None:
    recorded(run, "good")
    path = checkpoint(run, "step-100")
    RunCopy(opened("good/parts-001"), run, 1).send()
    number = path.stat().st_ino
    ours = runs_at(run.parent, "good")
    ours.continue_last()
    ours.leave()
    assert path.stat().st_ino == number


def test_a_writer_that_was_cut_off_asks_before_it_writes(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(run, "step-100")
    first = Copying(run, opened("zombie"), 1, "a")
    first.lock.acquire(None, print)
    assert first.attempt()
    locked("zombie", "b", before="a")
    before = tags("zombie")
    checkpoint(run, "step-200")
    monkeypatch.setattr(writer_lock, "STALE_SECONDS", 0.0)
    with pytest.raises(LostLock):
        first.attempt()
    assert tags("zombie") == before


def test_a_lock_that_cannot_be_shown_is_not_written_under(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = locked("unshown", "a")
    proxy.seen.clear()
    lock.check()
    assert proxy.seen == [], "one that was shown a moment ago is not asked for"
    monkeypatch.setattr(writer_lock, "STALE_SECONDS", 0.0)
    proxy.away = True
    with pytest.raises(RemoteError):
        lock.check()
    proxy.away = False
    lock.check()
    assert not lock.lost


def test_the_lock_is_shown_between_the_parts_of_an_upload(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(run, "step-100", size=20_000_000)
    copying = Copying(run, opened("parts"), 1, "a")
    copying.lock.acquire(None, print)
    monkeypatch.setattr(writer_lock, "STALE_SECONDS", 0.0)
    assert copying.attempt()
    writes = [path.partition("?")[0].rpartition("/")[2] for method, path in proxy.seen if method == "PUT"]
    first, last = (find(i for i, name in enumerate(writes) if name == "model.safetensors") for find in (min, max))
    assert writer_lock.FILE in writes[first:last]


def test_a_checkpoint_that_somebody_removed_is_sent_again(proxy: FaultyStore, run: Path) -> None:
    copy = RunCopy(opened("removed"), run, 1)
    checkpoint(run, "step-100")
    copy.send()
    checkpoint(run, "step-200")
    with_removal(copy, lambda: opened("removed").delete(["checkpoints/step-200/MANIFEST.json"]))
    copy.send()
    assert there(opened("removed")) == ["step-100"], "nothing is removed for one that is not there"
    assert copy.missing() == ["step-200"]
    copy.send()
    assert there(opened("removed")) == ["step-200"]
    assert copy.missing() == []


def with_removal(copy: RunCopy, remove: Callable[[], None]) -> None:
    """Let another writer remove the checkpoint as soon as its manifest is there."""
    send = copy._checkpoint

    def sent(folder: Path, name: str) -> None:
        send(folder, name)
        copy._checkpoint = send  # type: ignore[method-assign]
        remove()

    copy._checkpoint = sent  # type: ignore[method-assign]


def test_a_copy_of_the_last_start_is_waited_for(proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_child, "PREVIOUS_SECONDS", 0.3)
    recorded(run, "previous")
    ours = runs_at(run.parent, "previous")
    proxy.away = True
    child = CopyChild(run, parse("s3://bucket/previous/parts-001"), 1)
    try:
        with pytest.raises(Busy, match="still being sent"):
            ours.begin(run)
    finally:
        child.cancel()
        if ours.child:
            ours.child.cancel()
        ours.leave()
    copy_child.wait_for_previous(run)
    handle = file_lock.acquire(run / copy_child.LOCK, 0.0)
    assert handle is not None
    os.close(handle)


def test_a_file_that_was_removed_here_is_removed_there_by_the_next_start(proxy: FaultyStore, run: Path) -> None:
    (run / "batch_size.json").write_text("{}")
    checkpoint(run, "step-100")
    RunCopy(opened("gone"), run, 1).send()
    locked("gone", "a")
    (run / "batch_size.json").unlink()
    before = tags("gone")
    RunCopy(opened("gone"), run, 1).send()
    assert {name for name, _ in before} - {name for name, _ in tags("gone")} == {"batch_size.json"}


def test_a_folder_that_goes_away_in_between_removes_nothing(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunCopy(opened("unmounted"), run, 1).send()
    before = tags("unmounted")
    look = is_gone

    def gone(path: Path) -> bool:
        if run.is_dir():
            run.rename(run.with_name("away"))
        return look(path)

    monkeypatch.setattr(run_copy, "is_gone", gone)
    RunCopy(opened("unmounted"), run, 1).send()
    assert not run.is_dir()
    assert tags("unmounted") == before


def test_a_folder_that_is_gone_removes_nothing(proxy: FaultyStore, run: Path) -> None:
    RunCopy(opened("nothing"), run, 1).send()
    before = tags("nothing")
    run.rename(run.with_name("away"))
    RunCopy(opened("nothing"), run, 1).send()
    assert tags("nothing") == before
