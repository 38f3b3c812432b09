"""The cache of shards: locks end where they should, whatever was forked meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runtime.data.streaming.cache import ShardCache
from runtime.data.streaming.lease import Lease, needed


def forked() -> int:
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
            child = forked()
    elif hold == "reading":
        with cache.reading("a"):
            child = forked()
    else:
        lease = Lease(tmp_path)
        lease.write(["a"])
        child = forked()
        assert needed(tmp_path)[0] == {"a": 0}
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
