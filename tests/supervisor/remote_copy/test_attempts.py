"""Attempts at one copy of a run: of several processes only the newest writes, and the newest whole checkpoint is taken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivetrain.errors import CheckpointError
from drivetrain.storage.object_store import Patience
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy.run_copy import Attempt, NewerAttempt, RunCopy, list_attempts
from drivetrain.training.checkpoints.manifest import MANIFEST, verify
from tests.object_store import Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import (
    begin,
    fetch_copy,
    list_checkpoints,
    make_run,
    open_store,
    write_checkpoint,
    write_state,
)


def test_only_the_newest_attempt_writes(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    first = begin("who", run)
    second = begin("who", tmp_path / "elsewhere" / "parts-001")
    with pytest.raises(NewerAttempt):
        first.check()
    second.check()
    assert first.run == second.run


def test_of_attempts_at_once_each_has_a_number_and_one_goes_on(proxy: FaultyStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(lambda number: begin("many", tmp_path / f"machine-{number}"), range(8)))
    assert sorted(attempt.number for attempt in attempts) == list(range(1, 9)) == list_attempts(open_store("many"))
    for attempt in sorted(attempts, key=lambda attempt: attempt.number)[:-1]:
        with pytest.raises(NewerAttempt):
            attempt.check()
    max(attempts, key=lambda attempt: attempt.number).check()


@pytest.mark.parametrize("fault", ["lost", "slow down"])
def test_a_begin_whose_answer_is_lost(proxy: FaultyStore, run: Path, fault: str) -> None:
    """Its number may exist already, by itself; it takes the next one."""
    puts = [0]

    def fail_once(number: int, method: str, path: str) -> Fault | None:
        puts[0] += method == "PUT"
        return Fault(fault) if method == "PUT" and puts[0] == 1 else None

    proxy.fault = fail_once
    attempt = begin(f"begin-{fault[:4]}", run)
    attempt.check()
    assert attempt.number == list_attempts(attempt.store)[-1]


def test_a_store_that_is_away_does_not_end_an_attempt(proxy: FaultyStore, run: Path) -> None:
    attempt = begin("away", run)
    proxy.drops_connections = True
    with pytest.raises(RemoteError):
        attempt.check()
    proxy.drops_connections = False
    attempt.check()


def test_another_run_of_the_same_name_is_refused(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    begin("other", run)
    with pytest.raises(CheckpointError, match="two different runs"):
        begin("other", make_run(tmp_path / "elsewhere" / "parts-001"))
    assert list_attempts(open_store("other")) == [1]


def train_elsewhere(prefix: str, folder: Path, step: int) -> RunCopy:
    """Another machine resumes from the store, and trains on; its bytes are others."""
    attempt = begin(prefix, folder)
    fetch_copy(prefix, folder)
    step += 200 * (folder / "checkpoints" / f"step-{step}").exists()
    path = write_checkpoint(folder, f"step-{step}", size=9000)
    copy = RunCopy(attempt, folder, 2)
    copy.send()
    assert verify(path) is None
    return copy


@pytest.mark.parametrize("request_number", range(1, 34, 3))
def test_of_two_writers_exactly_one_goes_on(proxy: FaultyStore, run: Path, tmp_path: Path, request_number: int) -> None:
    """The first one lives: another begins at each of its requests in turn, and it learns so at its next object."""
    prefix, folder = f"two-{request_number}", tmp_path / "elsewhere" / "parts-001"
    attempt = Attempt(open_store(prefix, Patience(retries=20.0, silence=20.0, connect=2.0)), run)
    first_copy = RunCopy(attempt, run, 2)
    write_checkpoint(run, "step-100")
    first_copy.send()
    write_checkpoint(run, "step-200", size=5000)
    write_state(run, "done")
    count, second_copies = [0], list[RunCopy]()

    def begin_second(number: int, method: str, path: str) -> Fault | None:
        count[0] += 1
        if count[0] == request_number:
            proxy.fault = lambda number, method, path: None
            second_copies.append(train_elsewhere(prefix, folder, 200 if request_number % 2 else 300))
        return None

    proxy.fault = begin_second
    try:
        first_copy.send()
        is_complete = True
    except NewerAttempt:
        is_complete = False
    proxy.fault = lambda number, method, path: None
    if not second_copies:
        assert is_complete
        return
    with pytest.raises(NewerAttempt):
        attempt.check()
    fetch_copy(prefix, tmp_path / "third")
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    fetched = tmp_path / "third" / "checkpoints" / newest.name
    assert verify(fetched) is None
    assert (fetched / MANIFEST).read_bytes() == (newest / MANIFEST).read_bytes(), "nothing of it is written over"
    write_state(folder, "running")
    second_copies[0].send()
    assert b"running" in open_store(prefix).get("state.json")
    write_checkpoint(folder, "step-900")
    second_copies[0].send()  # removes what the first one has left
    assert {entry.name.split("/")[1] for entry in open_store(prefix).objects("checkpoints")} <= {"000001", "000002"}
    assert list_checkpoints(open_store(prefix))[-1] == "step-900"
