"""Locks and the disk cache, between real processes: killed in between, they leave nothing that stands in the way."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.system import file_lock
from drivetrain.system.disk_cache import DiskCache
from tests.paths import PACKAGE


class Entries(DiskCache):
    suffix = ".entry"


def fork(task: Callable[[], object]) -> int:
    """A process that does something; its exit code is 0 if that raised nothing."""
    if child := os.fork():
        return child
    code = 1
    try:
        task()
        code = 0
    finally:
        os._exit(code)


def wait_for_exit(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fill(path: Path) -> None:
    path.write_bytes(bytes(10))


def test_an_entry_is_written_once_although_the_first_writer_is_killed(tmp_path: Path) -> None:
    cache, log = Entries(tmp_path / "cache", 100), tmp_path / "log"

    def die(path: Path) -> None:
        fill(path)
        os.kill(os.getpid(), signal.SIGKILL)

    def write(path: Path) -> None:
        with log.open("a") as file:
            file.write("written\n")
        time.sleep(0.1)
        fill(path)

    assert wait_for_exit(fork(lambda: cache.write("a", 10, die))) == -signal.SIGKILL
    children = [fork(lambda: cache.write("a", 10, write)) for _ in range(5)]
    assert [wait_for_exit(child) for child in children] == [0] * 5
    assert log.read_text() == "written\n"
    assert {file.name for file in cache.folder.iterdir()} == {"a.entry", "lock"}


def test_an_entry_in_use_is_not_removed_until_its_process_ends(tmp_path: Path) -> None:
    cache = Entries(tmp_path / "cache", 10)
    assert cache.write("a", 10, fill)

    def read() -> None:
        with cache.reading("a"):
            (tmp_path / "reads").touch()
            signal.pause()

    child = fork(read)
    while not (tmp_path / "reads").exists():
        time.sleep(0.01)
    assert not cache.write("b", 10, fill)
    assert cache.has("a")
    os.kill(child, signal.SIGKILL)
    wait_for_exit(child)
    assert cache.write("b", 10, fill)
    assert not cache.has("a")


def test_a_claim_of_another_user_that_cannot_be_removed_takes_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, unlink = Entries(tmp_path, 100), Path.unlink
    (tmp_path / "theirs.part").write_bytes(bytes(50))

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.stem == "theirs":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert cache.write("a", 10, fill)
    assert not cache.write("b", 60, fill)


def test_what_was_used_least_recently_is_removed_first(tmp_path: Path) -> None:
    cache = Entries(tmp_path, 30)
    for name in "abc":
        cache.write(name, 10, fill)
        os.utime(cache.path(name), (1, ord(name)))
    with cache.reading("a") as handle:
        assert handle is not None
    assert cache.write("d", 10, fill)
    assert [cache.has(name) for name in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_lost_its_name_while_a_process_waited_is_noticed(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "lock"
    handle = file_lock.open_locked(path)

    def wait() -> None:
        (tmp_path / "waits").touch()
        assert file_lock.is_at(file_lock.open_locked(path, shared=shared), path)

    child = fork(wait)
    while not (tmp_path / "waits").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    assert file_lock.is_locked(path)
    path.unlink()
    file_lock.unlock(handle)
    assert wait_for_exit(child) == 0
    with file_lock.try_lock(path) as handle_or_none:
        assert handle_or_none is not None, "the lock ended with the process"


def test_one_module_locks_files() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if "fcntl.flock" in path.read_text()] == ["file_lock.py"]
