"""The family of a process: all below it are found, by the kernel's lists and without them, and their memory is counted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.system import process_tree
from tests.messages import says
from tests.paths import IMPORTS

CODE = (
    "import subprocess, sys; data = bytearray(40 << 20); data[::4096] = b'x' * len(data[::4096]);"
    "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read(); child.kill()"
)


@pytest.fixture
def child() -> Iterator[tuple[int, int]]:
    """A child of 40 MiB, started by another thread than the one that asks, and its own child."""
    started: list[subprocess.Popen[str]] = []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen([sys.executable, "-c", CODE], **pipes)))  # type: ignore[call-overload]
    thread.start()
    thread.join()
    process = started[0]
    assert process.stdout
    yield process.pid, int(process.stdout.readline())
    process.communicate()


@pytest.mark.parametrize("listed", [True, False])
def test_all_descendants_are_members(child: tuple[int, int], listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert {os.getpid(), *child} <= set(process_tree.list_process_ids())


def test_their_memory_is_counted(child: tuple[int, int]) -> None:
    rest = process_tree.sum_memory_bytes(
        Path("/none")
    )  # resident memory, as kernels without proportional memory tell it
    assert rest > psutil.Process().memory_info().rss + (40 << 20)


def test_shared_pages_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five workers that map the same file: their resident memory is five times what they use."""
    ours = os.getpid()
    monkeypatch.setattr(process_tree, "list_process_ids", lambda: [ours] * 5)
    (tmp_path / "proc" / str(ours)).mkdir(parents=True)
    (tmp_path / "proc" / str(ours) / "smaps_rollup").write_text(
        "5585f2e00000-7ffd2a1f9000 ---p 00000000 00:00 0    [rollup]\nRss:   600000 kB\nPss:   120000 kB\n"
        "Pss_Anon: 50000 kB\nPss_File: 40000 kB\nPss_Shmem: 30000 kB\n"
    )
    assert process_tree.sum_memory_bytes(tmp_path) == 5 * 80_000 << 10


def test_ended_processes_have_no_descendants() -> None:
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    assert list(process_tree._list_descendants(ended_process.pid)) == []


def test_a_process_that_ends_while_they_are_counted_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    monkeypatch.setattr(process_tree, "list_process_ids", lambda: [ended_process.pid])
    assert process_tree.sum_memory_bytes() == process_tree.sum_cpu_seconds() == 0


def test_a_cgroup_located_once_gives_the_same_values() -> None:
    from pathlib import Path

    from drivetrain.hardware import cgroup

    limits, group = cgroup.read_limits(Path("/")), ProcessCgroup()
    limit, used_bytes = group.read_memory()
    assert limit == limits.memory
    assert (used_bytes is None) == (limits.used is None)


SHORT_OF_THREADS = """
import os, psutil, resource
from drivetrain.errors import DeviceError
from drivetrain.system import process_tree
process_tree.check_threads()
if os.getuid() == 0:  # root has no limit
    os.setuid(23456)
LIMIT
try:
    process_tree.check_threads()
except DeviceError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "option"),
    [
        ("resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))", "ulimit -u"),
        ("resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (40 << 20),) * 2)", "ulimit -v"),
    ],
    ids=["processes", "addresses"],
)
def test_a_limit_of_threads_is_an_error_before_anything_is_made(limit: str, option: str) -> None:
    """Training ended with a traceback at 8, and with six of them at 16, where 24 are enough; stacks need addresses."""
    command = [sys.executable, "-c", SHORT_OF_THREADS.replace("LIMIT", limit)]
    output = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": IMPORTS}, capture_output=True, text=True, check=True
    )
    assert says(output.stdout, "more-threads-can-started")
    assert output.stdout.count(option) == 2
