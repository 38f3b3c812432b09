"""The thread that copies a run: what it does not send ends neither the run nor the wait for it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from drivetrain.supervisor.remote_copy import copy_thread
from drivetrain.supervisor.remote_copy.copy_thread import CopyThread
from tests.messages import says
from tests.object_store import Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import (
    list_checkpoints,
    open_store,
    read_owner,
    take_ownership,
    write_checkpoint,
    write_state,
)


def events(run: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]


def test_the_rest_is_sent_and_the_copy_given_back(proxy: FaultyStore, run: Path) -> None:
    thread = CopyThread(run, take_ownership("rest", run), 2)
    write_checkpoint(run, "step-100", size=20_000_000)
    write_state(run, "done")
    assert thread.finish(0) == 0
    assert list_checkpoints(open_store("rest")) == ["step-100"]
    owner = read_owner(open_store("rest")).owner
    assert (owner.writer, owner.status) == ("", "done")


@pytest.mark.parametrize("code", [0, 143])
def test_a_store_that_is_silent_does_not_hold_the_end_of_a_run(
    proxy: FaultyStore, run: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(copy_thread, "STALL_SECONDS", 2.0)
    monkeypatch.setattr(copy_thread, "AT_ONCE_SECONDS", 1.0)
    file = take_ownership(f"silent-{code}", run)
    write_checkpoint(run, "step-100")
    proxy.fault = lambda number, method, path: Fault("silent") if method == "PUT" else None
    thread = CopyThread(run, file, 2)
    began_at = time.monotonic()
    assert thread.finish(code) == (7 if code == 0 else 143)
    assert time.monotonic() - began_at < 10
    assert f"s3://bucket/silent-{code} lacks step-100, " in events(run)[-1]
    proxy.fault = lambda number, method, path: None
    thread.cancel()
    assert list_checkpoints(open_store(f"silent-{code}")) == []


def test_an_upload_that_is_abandoned_ends_at_its_next_part(proxy: FaultyStore, run: Path) -> None:
    file = take_ownership("abandoned", run)
    write_checkpoint(run, "step-100", size=60_000_000)
    thread = CopyThread(run, file, 2)
    while not any("partNumber=2" in path for _, path in proxy.requests):
        time.sleep(0.01)
    thread.cancel()
    assert not thread._thread.is_alive()
    assert list_checkpoints(open_store("abandoned")) == []


def test_one_that_lost_the_copy_ends_with_11(proxy: FaultyStore, run: Path) -> None:
    thread = CopyThread(run, take_ownership("lost", run), 2)
    take_ownership("lost", run.with_name("elsewhere"))
    write_checkpoint(run, "step-100")
    write_state(run, "stopped")
    assert thread.finish(75) == 11
    assert says(events(run)[-1], "written-another-process-now")
    assert list_checkpoints(open_store("lost")) == []
