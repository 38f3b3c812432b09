"""One writer per run in a store."""

from __future__ import annotations

import pytest

from drivetrain.errors import Busy
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy import writer_lock
from drivetrain.supervisor.remote_copy.writer_lock import WriterLock
from tests.object_store import Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import opened


@pytest.fixture
def proxy(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The same, for writers that look at the lock more often."""
    monkeypatch.setattr(writer_lock, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(writer_lock, "STALE_SECONDS", 1.5)
    monkeypatch.setattr(writer_lock, "POLL_SECONDS", 0.2)
    return proxy


def acquired(place: str, writer: str, before: str | None = None) -> tuple[WriterLock, list[str]]:
    lock, lines = WriterLock(opened(place), writer), list[str]()
    lock.acquire(before, lines.append)
    return lock, lines


def test_a_second_writer_is_refused(proxy: FaultyStore) -> None:
    first, lines = acquired("second", "a")
    assert lines == []
    with first.beating(), pytest.raises(Busy) as found:
        acquired("second", "b")
    assert "is training this run" in found.value.given
    assert found.value.exit_code == 11
    assert not first.lost


def test_one_that_died_is_followed(proxy: FaultyStore) -> None:
    first, _ = acquired("died", "a")
    second, lines = acquired("died", "b")
    assert len(lines) == 1
    assert "was last written by process" in lines[0]
    first.beat()
    assert first.lost
    second.beat()
    assert not second.lost


def test_the_same_folder_goes_on_at_once(proxy: FaultyStore) -> None:
    acquired("same", "a")
    _, lines = acquired("same", "b", before="a")
    assert lines == []


def test_one_that_was_given_back_is_free(proxy: FaultyStore) -> None:
    first, _ = acquired("back", "a")
    first.release()
    _, lines = acquired("back", "b")
    assert lines == []


def test_one_that_is_lost_is_not_given_back(proxy: FaultyStore) -> None:
    first, _ = acquired("mine", "a")
    second, _ = acquired("mine", "b", before="a")
    first.release()
    second.beat()
    assert not second.lost


@pytest.mark.parametrize("fault", ["lost", "slow down"])
def test_an_answer_that_is_lost_does_not_lose_the_lock(proxy: FaultyStore, fault: str) -> None:
    place = f"answer-{fault[:4]}"
    count = [0]

    def once(number: int, method: str, path: str) -> Fault | None:
        count[0] += method == "PUT"
        return Fault(fault) if method == "PUT" and count[0] == 1 else None

    proxy.fault = once
    lock, lines = acquired(place, "a")
    assert lines == []
    count[0] = 0
    lock.beat()
    lock.beat()
    assert not lock.lost


def test_a_store_that_is_away_does_not_lose_the_lock(proxy: FaultyStore) -> None:
    lock, _ = acquired("away", "a")
    proxy.away = True
    with pytest.raises(RemoteError):
        lock.beat()
    proxy.away = False
    lock.beat()
    assert not lock.lost
    child = WriterLock(opened("away"), "a")
    child.adopt()
    child.beat()
    assert not child.lost
