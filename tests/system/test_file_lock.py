"""Locks of files between real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.system import file_lock
from tests.paths import PACKAGE


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
