"""The cache of shards: locks end where they should, whatever was forked meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from drivetrain.data.streaming.cache import Lease, ShardCache, read_needed
from drivetrain.errors import StorageError
from drivetrain.system import disk_cache


def fork_process() -> int:
    """A process that has all open files of this one, as a loader worker has."""
    child = os.fork()
    if not child:
        signal.pause()
    return child


@pytest.mark.parametrize("hold", ["locked", "reading", "lease"])
def test_a_lock_ends_although_a_worker_was_forked_under_it(tmp_path: Path, hold: str) -> None:
    cache = ShardCache(tmp_path, 10)
    cache.make("a", 10, lambda path: path.write_bytes(bytes(10)) and None)
    if hold == "locked":
        with cache.locked():
            child = fork_process()
    elif hold == "reading":
        with cache.reading("a"):
            child = fork_process()
    else:
        lease = Lease(tmp_path)
        lease.write(["a"])
        child = fork_process()
        assert read_needed(tmp_path) == {"a": 0}
        lease.end()
    try:
        signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the lock is still held"))
        signal.alarm(20)
        assert cache.make("b", 10, lambda path: path.write_bytes(bytes(10)) and None)
        assert not cache.has("a")
    finally:
        signal.alarm(0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_a_killed_fetch_leaves_is_removed(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 1000)

    def write_and_die(path: Path) -> None:
        path.write_bytes(bytes(10))
        path.with_suffix(".whole").write_bytes(bytes(600))
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        cache.make("a", 900, write_and_die)
    os.waitpid(child, 0)
    assert (tmp_path / "a.whole").exists()
    assert cache.make("b", 900, lambda path: path.write_bytes(bytes(900)) and None)
    assert {file.name for file in tmp_path.iterdir()} == {"b.rows", "lock"}


def test_a_shard_that_is_finished_while_sizes_are_added_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, write, remove_abandoned = ShardCache(tmp_path, 100), threading.Event(), disk_cache._remove_abandoned

    def slow(path: Path) -> None:
        assert write.wait(10)
        path.write_bytes(bytes(80))

    maker = threading.Thread(target=cache.make, args=("a", 80, slow))

    def finished_meanwhile(claim: Path) -> bool:
        write.set()
        maker.join(0.5)  # without the lock of the cache its claim is gone now
        return remove_abandoned(claim)

    maker.start()
    while not (tmp_path / "a.part").exists() or (tmp_path / "a.part").stat().st_size != 80:
        time.sleep(0.01)
    monkeypatch.setattr(disk_cache, "_remove_abandoned", finished_meanwhile)
    assert not cache.make("b", 80, lambda path: None, keep=["a"])
    maker.join()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 80


def test_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    cache = ShardCache(tmp_path, 1000)
    cache.make("a", 10, lambda path: path.write_bytes(bytes(10)) and None)
    assert synced == [cache.path("a").stat().st_ino]


def test_a_claim_that_cannot_be_made_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a.part").mkdir()
    with pytest.raises(StorageError, match=r"Is a directory"):
        ShardCache(tmp_path, 1000).make("a", 10, lambda path: None)


def test_a_lease_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    os.close(lease.handle)
    lease.handle = os.open(lease.path, os.O_RDONLY)
    with pytest.raises(StorageError):
        lease.write(["a"])
    lease.end()


def test_a_lease_that_is_being_written_counts(tmp_path: Path) -> None:
    """Another process would else remove what a run needs at once, and the run would fetch it again."""
    lease, over = Lease(tmp_path), threading.Event()
    names = [f"shard-{number}" for number in range(50)]
    lease.write(names)

    def write() -> None:
        while not over.is_set():
            lease.write(names)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {len(read_needed(tmp_path)) for _ in range(2000)} == {50}
    finally:
        over.set()
        writer.join()
        lease.end()


def test_a_lease_that_stays_half_written_is_passed_over(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    os.pwrite(lease.handle, b'{"names": ["a', 0)
    assert read_needed(tmp_path) == {}
    lease.end()
