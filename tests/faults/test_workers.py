"""Loader workers that are killed, stopped, or run out of shared memory: found out, replaced, and not a bit lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.loader import workers
from drivetrain.data.loader.batches import Batches
from drivetrain.data.loader.workers import WorkerSettings
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import PeerError
from drivetrain.system.signals import HANDLED_SIGNALS
from tests import tiny
from tests.messages import get_message, says, says_each


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that do something to the process that reads number 5 for the first time."""

    def __init__(self, folder: Path, fault: Callable[[], None], times: int) -> None:
        self.folder, self.fault, self.times = folder, fault, times

    def __getitem__(self, ids: Ids) -> torch.Tensor:
        parent = multiprocessing.parent_process()
        done = len(list(self.folder.iterdir()))
        if 5 in ids and parent is not None and done < self.times:
            (self.folder / str(done)).touch()
            self.fault()
        return torch.from_numpy(ids * 2)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGBUS)  # what a full /dev/shm gives


def notices() -> None:
    for number in HANDLED_SIGNALS:
        if number != signal.SIGTERM:  # with which the trainer ends its workers
            os.kill(os.getpid(), number)


GROUPS = [np.arange(i, i + 2) for i in range(0, 20, 2)]


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "POLL_SECONDS", 1)


def prepare_items(folder: Path, fault: Callable[[], None], times: int, notes: list[str]) -> list[torch.Tensor]:
    settings = WorkerSettings(2, report=notes.append, hang_seconds=2.0)
    try:
        return list(settings.prepare(Slow(folder, fault, times), GROUPS))
    finally:
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (kill, "a loader worker died (exit -9)"),
        (segfault, "a loader worker died (exit -7)"),
        (stop, "hung for"),
    ],
    ids=["killed", "bus error", "stopped"],
)
def test_new_workers_continue_from_the_batch_that_is_due(tmp_path: Path, fault: Callable[[], None], word: str) -> None:
    notes: list[str] = []
    items = prepare_items(tmp_path, fault, 1, notes)
    assert [item.tolist() for item in items] == [[2 * i, 2 * i + 2] for i in range(0, 20, 2)]
    assert len(notes) == 1
    assert word in notes[0]
    assert says(notes[0], "new-workers-continue")


def test_signals_of_a_run_do_not_end_its_workers(tmp_path: Path) -> None:
    """A scheduler sends its notice to every process, and the trainer saves."""
    notes: list[str] = []
    assert len(prepare_items(tmp_path, notices, 10**6, notes)) == len(GROUPS)
    assert notes == []


def test_after_repeated_worker_deaths_the_trainer_prepares_batches_itself(tmp_path: Path) -> None:
    notes: list[str] = []
    items = prepare_items(tmp_path, kill, 10**6, notes)
    assert [item.tolist() for item in items] == [[2 * i, 2 * i + 2] for i in range(0, 20, 2)]
    assert len(notes) == workers.MAX_STARTS
    assert says(notes[-1], "now-main-process-prepares")


def test_repeated_hangs_end_the_run(tmp_path: Path) -> None:
    notes: list[str] = []
    with pytest.raises(PeerError, match="loader workers hung 3 times"):
        prepare_items(tmp_path, stop, 10**6, notes)
    assert len(notes) == workers.MAX_STARTS


def test_a_killed_worker_does_not_raise_inside_the_trainer(tmp_path: Path) -> None:
    """Torch raises from a signal handler; in the middle of an update that would leave half of it done."""
    data = tiny.dataset()
    batches = Batches(data.train, 4, 0)
    batches.workers, batches.report = 1, lambda text: None
    expected = [batch.ids.tolist() for batch in Batches(data.train, 4, 0).epoch(0)]
    source = batches.epoch(0)
    batch_ids = [next(source).ids.tolist()]
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        sum(range(1000))
    batch_ids += [batch.ids.tolist() for batch in source]
    assert batch_ids == expected


def test_workers_die_with_the_trainer(tmp_path: Path) -> None:
    ready, pids = threading.Event(), tmp_path / "pids"
    child = os.fork()
    if child == 0:
        source = WorkerSettings(2).prepare(Slow(tmp_path / "none", kill, 0), GROUPS)
        (tmp_path / "none").mkdir()
        next(source)
        text = " ".join(str(p.pid) for p in multiprocessing.active_children())
        pids.with_name("part").write_text(text)
        pids.with_name("part").rename(pids)
        time.sleep(60)
        os._exit(0)
    try:
        while not pids.exists():
            ready.wait(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for pid in pids.read_text().split():
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            ready.wait(0.05)


class Ahead(torch.utils.data.Dataset[torch.Tensor]):
    """The only worker stops at its third batch, once, while its first two wait to be fetched from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, ids: Ids) -> torch.Tensor:
        if ids[0] == 4 and not (self.folder / "stopped").exists():
            (self.folder / "stopped").touch()
            stop()
        return torch.from_numpy(ids * 2)


def test_a_worker_that_stops_while_it_sends_a_batch(tmp_path: Path) -> None:
    notes: list[str] = []
    source = WorkerSettings(1, report=notes.append, hang_seconds=2.0).prepare(Ahead(tmp_path), GROUPS)
    first = next(source)
    time.sleep(0.5)
    items = [first, *source]
    assert [item.tolist() for item in items] == [[2 * i, 2 * i + 2] for i in range(0, 20, 2)]
    assert len(notes) == 1
    assert "hung for" in notes[0]


class Undeliverable:
    """An item that a worker cannot hand over: torch's words where shared memory is full, or another mistake."""

    def __init__(self, message: str) -> None:
        self.words = message

    def __reduce__(self) -> str:
        raise RuntimeError(self.words)


class Bulky(torch.utils.data.Dataset[Any]):
    """Samples of which number 5 cannot be handed over by a worker."""

    def __init__(self, message: str) -> None:
        self.words = message

    def __getitem__(self, ids: Ids) -> Any:
        bad = 5 in ids and multiprocessing.parent_process() is not None
        return Undeliverable(self.words) if bad else torch.from_numpy(ids * 2)


NO_ROOM = (
    "a loader worker found no space in /dev/shm for its batch before batch N; "
    "from now on the main process prepares the batches"
)
FULL = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"


def test_shared_memory_that_is_full_is_found_out_at_once() -> None:
    """Python prints the error of the thread that hands over and drops the batch: it was waited for until it was hung."""
    notes: list[str] = []
    items = list(WorkerSettings(2, report=notes.append, hang_seconds=100.0).prepare(Bulky(FULL), GROUPS))
    assert [item.tolist() for item in items] == [[2 * i, 2 * i + 2] for i in range(0, 20, 2)]
    assert [re.sub(r"batch \d+", "batch N", text) for text in notes] == [NO_ROOM]


def test_an_item_that_cannot_be_sent_is_no_hang(capfd: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    items = list(WorkerSettings(1, report=notes.append, hang_seconds=100.0).prepare(Bulky("cannot be pickled"), GROUPS))
    assert len(items) == len(GROUPS)
    assert [text.split(" before ")[0] for text in notes] == ["a loader worker died (exit 1)"] * workers.MAX_STARTS
    assert says(capfd.readouterr().err, "runtimeerror-cannot-be-pickled")


SMALL = """
import sys
from tests.small_shm import small_shm
small_shm(sys.argv[1])
"""


def test_a_shared_memory_of_32_mib(tmp_path: Path) -> None:
    """The real thing, where a process may mount: batches that do not fit are made without workers, or told at once."""
    mount = "mount -t tmpfs -o size=32m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    line = f"{mount} && exec {sys.executable} -c '{SMALL}' {tmp_path}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    messages = [
        re.sub(r"batch \d+", "batch N", line) for line in done.stdout.splitlines() if line.startswith(("told", "work"))
    ]
    assert says_each(
        messages,
        [
            get_message("told-mib-free-batches", "/dev/shm", 32, 16, 24),
            "workers 0 samples 64",
            "workers 2 samples 64",
            f"told: {NO_ROOM}",
            "workers 2 samples 64",
        ],
    ), done.stdout + done.stderr


class CollectingDataset(torch.utils.data.Dataset[torch.Tensor]):
    """Samples whose reading collects what nobody uses."""

    def __getitem__(self, ids: Ids) -> torch.Tensor:
        gc.collect()
        return torch.from_numpy(ids)


def test_new_workers_leave_alone_what_their_parent_no_longer_uses(capfd: pytest.CaptureFixture[str]) -> None:
    """A rollback gives up an epoch that only a cycle refers to. Its end is the parent's, not that of a forked worker."""
    ended, parent = multiprocessing.Value("i", 0), os.getpid()

    def given_up() -> Iterator[torch.Tensor]:
        try:
            yield from WorkerSettings(1).prepare(CollectingDataset(), GROUPS)
        finally:
            ended.value += os.getpid() != parent

    gc.disable()
    try:
        items = given_up()
        next(items)
        old = set(multiprocessing.active_children())
        assert len(old) == 1
        cycle: list[Any] = [items]
        cycle.append(cycle)
        del items, cycle
        assert len(list(WorkerSettings(1).prepare(CollectingDataset(), GROUPS))) == len(GROUPS)
        assert ended.value == 0
        assert set(multiprocessing.active_children()) == old, "they wait for their parent"
    finally:
        gc.enable()
        gc.collect()
    assert multiprocessing.active_children() == []
    assert "can only" not in capfd.readouterr().err


def test_torch_does_not_warn_of_many_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted the CPUs of the moment, which are fewer while other programs are busy, at the start of every epoch."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(prepare_items(tmp_path, kill, 0, [])) == len(GROUPS)
