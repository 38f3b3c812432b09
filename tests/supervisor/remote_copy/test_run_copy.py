"""A run is copied to a store and brought back: killed anywhere, a checkpoint that verifies is there.

What the thread that copies it does not send ends neither the run nor the wait for it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from drivetrain.errors import CheckpointError
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy import run_copy
from drivetrain.supervisor.remote_copy.remote_runs import fetch_run
from drivetrain.supervisor.remote_copy.run_copy import CopyThread, NewerAttempt
from drivetrain.training.checkpoints.manifest import verify
from tests.messages import saying, says
from tests.object_store import Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import (
    SHORT,
    begin,
    fetch_copy,
    list_checkpoints,
    make_run,
    object_of,
    open_copy,
    open_store,
    write_checkpoint,
    write_state,
)


def test_all_that_a_run_needs_is_there(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    write_checkpoint(run, "best-10")
    write_checkpoint(run, "step-20", best=10)
    copy = open_copy("all", run, 2)
    copy.send()
    assert copy.find_unsent() is None
    names = [stored_object.name for stored_object in open_store("all").objects()]
    assert object_of("all", "step-20", "MANIFEST.json") in names
    assert not [name for name in names if "ranks" in name or ".lock" in name or ".tmp" in name]
    lines = fetch_copy("all", tmp_path / "elsewhere" / "parts-001")
    assert (
        lines == [f"s3://bucket/all: step-20, 6.2 KiB downloaded to {tmp_path}/elsewhere/parts-001"]
        or "step-20" in lines[0]
    )
    for path in run.rglob("*"):
        copied_file = tmp_path / "elsewhere" / "parts-001" / path.relative_to(run)
        if path.is_file() and path.name not in (".lock", "log"):
            assert copied_file.read_bytes() == path.read_bytes()
    assert not list(run.glob(".tmp*"))
    assert not list((tmp_path / "elsewhere").glob(".tmp*"))


def test_the_copy_is_pruned_like_the_folder(proxy: FaultyStore, run: Path) -> None:
    copy = open_copy("prune", run, 2)
    for step in (10, 20, 30, 40):
        if step != 30:
            write_checkpoint(run, f"best-{step}")
        write_checkpoint(run, f"step-{step}", best=step if step != 30 else 20)
        copy.send()
    assert list_checkpoints(open_store("prune")) == ["best-20", "best-40", "step-30", "step-40"]
    next_copy = open_copy("prune", run, 1)
    write_checkpoint(run, "step-50", best=40)
    next_copy.send()
    assert list_checkpoints(open_store("prune")) == ["best-40", "step-50"]


def test_a_run_that_went_back_leaves_no_later_checkpoint(proxy: FaultyStore, run: Path) -> None:
    copy = open_copy("back", run, 2)
    for step in (10, 20):
        write_checkpoint(run, f"step-{step}")
        copy.send()
    shutil.rmtree(run / "checkpoints" / "step-20")
    write_checkpoint(run, "step-15")
    open_copy("back", run, 2).send()
    assert list_checkpoints(open_store("back")) == ["step-10", "step-15"]


def test_a_damaged_checkpoint_is_not_copied(proxy: FaultyStore, run: Path) -> None:
    write_checkpoint(run, "step-10")
    (write_checkpoint(run, "step-20") / "model.safetensors").write_bytes(b"x")
    copy = open_copy("damaged", run, 2)
    copy.send()
    assert list_checkpoints(open_store("damaged")) == ["step-10"]


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_killed_at_any_request_a_verified_checkpoint_loads(proxy: FaultyStore, tmp_path: Path, every: int) -> None:
    """The store stops to hear us at each request of the second copy in turn, before it and after it was carried out."""
    for number in itertools.count(1, every):
        prefix = f"killed{every}-{number}"
        folder = make_run(tmp_path / prefix / "parts-001")
        copy = open_copy(prefix, folder, 1)
        write_checkpoint(folder, "best-10")
        write_checkpoint(folder, "step-10", best=10)
        copy.send()
        write_checkpoint(folder, "best-20")
        write_checkpoint(folder, "step-20", best=20)
        (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 20}\n')
        first_request = len(proxy.requests)

        def fault(
            count: int, method: str, path: str, first_request: int = first_request, last: int = first_request + number
        ) -> Fault | None:
            if count < last:
                return None
            return Fault("lost" if last % 2 and count == last else "gone")

        proxy.fault = fault
        try:
            copy.send()
            is_complete = True
        except RemoteError:
            is_complete = False
        proxy.fault = lambda count, method, path: None
        elsewhere = tmp_path / "elsewhere" / prefix
        fetch_copy(prefix, elsewhere)
        steps = sorted(path.name for path in (elsewhere / "checkpoints").glob("step-*"))
        assert steps in (["step-10"], ["step-20"])
        step = steps[0].removeprefix("step-")
        assert all(verify(elsewhere / "checkpoints" / name) is None for name in (steps[0], f"best-{step}"))
        if step == "20":
            assert '"step": 20' in (elsewhere / "metrics.jsonl").read_text(), "rows are there before the checkpoint"
        copy.send()  # what an upload after it makes of the rest
        assert list_checkpoints(open_store(prefix)) == ["best-20", "step-20"]
        assert not [
            stored_object for stored_object in open_store(prefix).objects("checkpoints") if "-10/" in stored_object.name
        ]
        if is_complete:
            assert number > 10
            return


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_copy_is_told_and_the_one_before_is_used(
    proxy: FaultyStore, run: Path, tmp_path: Path, damage: str
) -> None:
    prefix = f"bad-{damage}"
    for step in (10, 20):
        write_checkpoint(run, f"step-{step}")
        open_copy(prefix, run, 2).send()
    store, name = open_store(prefix), object_of(prefix, "step-20", "model.safetensors")
    content = store.get(name)
    if damage == "missing":
        store.delete([name])
    else:
        store.put(name, content[:-1] if damage == "cut" else b"X" + content[1:])
    lines = fetch_copy(prefix, tmp_path / "elsewhere")
    assert f"s3://bucket/{prefix}: checkpoint step-20 is damaged: model.safetensors" in lines[0]
    assert "step-10" in lines[1]
    assert [path.name for path in (tmp_path / "elsewhere" / "checkpoints").iterdir()] == ["step-10"]
    store.put(object_of(prefix, "step-10", "state.json"), b"{}")
    with pytest.raises(CheckpointError, check=saying("all-checkpoints-are-damaged")):
        fetch_copy(prefix, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_download_with_faults(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    write_checkpoint(run, "step-10", size=3_000_000)
    open_copy("faults", run, 2).send()
    kinds = itertools.cycle([Fault("cut", 1000), None, Fault("slow down"), None, Fault("gone"), None])
    proxy.fault = lambda number, method, path: next(kinds) if method == "GET" else None
    fetch_run(open_store("faults", SHORT.__class__(retries=20, silence=2, connect=1)), tmp_path / "here")
    assert verify(tmp_path / "here" / "checkpoints" / "step-10") is None


def test_names_in_a_store_do_not_leave_the_folder(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    store = open_store("names")
    open_copy("names", run).send()
    for name in ("a/.hidden", "back\\slash", "checkpoints/step-1/.x"):
        store.put(name, b"bad")
    fetch_copy("names", tmp_path / "deep" / "here")
    paths = {str(path.relative_to(tmp_path / "deep" / "here")) for path in (tmp_path / "deep" / "here").rglob("*")}
    assert paths == {"job.yaml", "metrics.jsonl", "model", "model/config.json", "state.json"}


def test_it_stops_before_it_writes_what_belongs_to_another(proxy: FaultyStore, run: Path) -> None:
    write_checkpoint(run, "step-10")
    copy = open_copy("lost", run)
    copy.send()
    before = {stored_object.name: stored_object.tag for stored_object in open_store("lost").objects()}
    write_checkpoint(run, "step-20")
    write_state(run, "done")

    begin("lost", run.with_name("elsewhere"))
    before["attempts/000002.json"] = getattr(open_store("lost").find_head("attempts/000002.json"), "tag", "")
    with pytest.raises(NewerAttempt):
        copy.send()
    assert {stored_object.name: stored_object.tag for stored_object in open_store("lost").objects()} == before


def test_a_checkpoint_that_is_removed_meanwhile_is_copied_whole(proxy: FaultyStore, run: Path) -> None:
    path = write_checkpoint(run, "step-10")

    def remove_while_copied() -> None:
        if any("step-10" in request for _, request in proxy.requests):
            shutil.rmtree(path, ignore_errors=True)

    copy = open_copy("meanwhile", run)
    copy.note_progress = remove_while_copied
    copy.send()
    assert list_checkpoints(open_store("meanwhile")) == ["step-10"]


def test_the_state_comes_last(proxy: FaultyStore, run: Path) -> None:
    write_checkpoint(run, "step-10")
    write_state(run, "done")
    open_copy("order", run, 2).send()
    uploads = [os.path.basename(path) for method, path in proxy.requests if method == "PUT"]
    assert uploads[-3:] == ["model.safetensors", "MANIFEST.json", "state.json"]
    assert {"state.json", "optimizer.safetensors", "metrics.jsonl"} <= set(uploads[:-3])


def test_nothing_is_sent_twice(proxy: FaultyStore, run: Path) -> None:
    write_checkpoint(run, "step-10")
    copy = open_copy("once", run, 2)
    copy.send()
    count = len(proxy.requests)
    copy.send()
    assert len(proxy.requests) == count


def test_attempts_at_a_store_that_is_away_are_no_movement(proxy: FaultyStore, run: Path) -> None:
    """Else the wait at the end of a run, which counts the time in which nothing moves, would never end."""
    write_checkpoint(run, "step-10")
    copy, moved = open_copy("moved", run), list[int]()
    copy.note_progress = lambda: moved.append(1)
    proxy.drops_connections = True
    with pytest.raises(RemoteError):
        copy.send()
    assert moved == []
    proxy.drops_connections = False
    copy.send()
    assert len(moved) > 3


def events(run: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]


def test_the_rest_is_sent(proxy: FaultyStore, run: Path) -> None:
    thread = CopyThread(open_copy("rest", run))
    write_checkpoint(run, "step-100", size=20_000_000)
    write_state(run, "done")
    assert thread.finish(0) == 0
    assert list_checkpoints(open_store("rest")) == ["step-100"]
    assert b'"done"' in open_store("rest").get("state.json")


@pytest.mark.parametrize("code", [0, 75, 143])
def test_a_store_that_is_silent_does_not_hold_the_end_of_a_run(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(run_copy, "STALL_SECONDS", 2.0)
    monkeypatch.setattr(run_copy, "STOPPED_SECONDS", 2.0)
    monkeypatch.setattr(run_copy, "AT_ONCE_SECONDS", 1.0)
    copy = open_copy(f"silent-{code}", run)
    write_checkpoint(run, "step-100")
    proxy.fault = lambda number, method, path: Fault("silent") if method == "PUT" else None
    thread = CopyThread(copy)
    began_at = time.monotonic()
    assert thread.finish(code) == (143 if code == 143 else 7)
    assert time.monotonic() - began_at < 10
    assert f"s3://bucket/silent-{code} lacks step-100" in events(run)[-1]
    proxy.fault = lambda number, method, path: None
    thread.cancel()
    assert list_checkpoints(open_store(f"silent-{code}")) == []


def test_an_upload_that_is_abandoned_ends_at_its_next_part(proxy: FaultyStore, run: Path) -> None:
    copy = open_copy("abandoned", run)
    write_checkpoint(run, "step-100", size=60_000_000)
    thread = CopyThread(copy)
    while not any("partNumber=2" in path for _, path in proxy.requests):
        time.sleep(0.01)
    thread.cancel()
    assert not thread._thread.is_alive()
    assert list_checkpoints(open_store("abandoned")) == []


def test_one_that_lost_the_copy_ends_with_11(proxy: FaultyStore, run: Path) -> None:
    thread = CopyThread(open_copy("lost-while-it-trains", run))
    begin("lost-while-it-trains", run.with_name("elsewhere"))
    write_checkpoint(run, "step-100")
    write_state(run, "stopped")
    assert thread.finish(75) == 11
    assert says(events(run)[-1], "written-another-process-now")
    assert list_checkpoints(open_store("lost-while-it-trains")) == []
