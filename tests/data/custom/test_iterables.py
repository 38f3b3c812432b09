"""Iterables of a job: read in their order, continued from their state, divided among processes; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.baselines import measure
from drivetrain.data.custom.iterables import StreamBatches, StreamSplit, batches_of
from drivetrain.data.load_data import load
from drivetrain.distributed import world
from drivetrain.errors import DataError
from drivetrain.hardware.facts import read_hardware
from drivetrain.job.workload import Workload
from drivetrain.optimizations import loader_workers
from drivetrain.report.baseline_results import Skipped
from tests import own_job
from tests.messages import saying, says
from tests.paths import MACHINES

NAMES = "names: [low, high]"
DATA = """
import torch

class Numbers:
    def __init__(self, count):
        self.count, self.epoch, self.next, self.reads = count, 0, 0, 0

    def set_epoch(self, epoch):
        self.epoch, self.next = epoch, 0

    def __iter__(self):
        while self.next < self.count:
            value = (7 * self.next + self.epoch) % 11
            self.next, self.reads = self.next + 1, self.reads + 1
            yield value + torch.rand(4), int(value > 5)

class Sized(Numbers):
    def __len__(self):
        return self.count

class Kept(Numbers):
    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]

def load(kind="Numbers", count=60):
    return globals()[kind](count), Numbers(20)

def generate():
    yield torch.zeros(4), 1

def load_generator():
    return generate(), Numbers(20)
"""


def make_batches(
    folder: Path, kind: str = "Numbers", train: str = "epoch_steps: 3", data: str = NAMES
) -> StreamBatches:
    job = own_job.job(folder, {"my_data.py": DATA}, data=f"{data}, arguments: {{kind: {kind}}}", train=train)
    batches = batches_of(load(job), job.train.batch, job.train.seed)
    assert isinstance(batches, StreamBatches)
    return batches


def read(batches: Iterator[Any]) -> torch.Tensor:
    return torch.cat([batch.inputs[0] for batch in batches])


def test_an_epoch_has_the_steps_of_the_job_or_the_length_of_the_iterable(tmp_path: Path) -> None:
    batches = make_batches(tmp_path)
    assert (batches.per_epoch, len(read(batches.epoch(0)))) == (3, 48)
    assert not torch.equal(read(batches.epoch(0)), read(batches.epoch(1)))
    sized = make_batches(tmp_path, "Sized", "seed: 0")
    assert (sized.per_epoch, len(read(sized.epoch(0)))) == (4, 60)
    assert torch.equal(read(sized.epoch(0))[:48], read(batches.epoch(0)))


@pytest.mark.parametrize("kind", ["Numbers", "Kept"])
def test_a_resumed_epoch_has_the_same_samples(tmp_path: Path, kind: str) -> None:
    batches = make_batches(tmp_path, kind)
    expected = list(batches.epoch(1))
    stopped = batches.epoch(1)
    next(stopped)
    state = batches.stream.read_state(1, 1)
    assert state == ({"next": 16} if kind == "Kept" else None)
    resumed = make_batches(tmp_path, kind)
    resumed.state, reads = (1, 1, state), resumed.stream.dataset.reads
    actual = list(resumed.epoch(1, 1))
    assert torch.equal(read(iter(actual)), read(iter(expected[1:])))
    assert resumed.stream.dataset.reads - reads == (32 if kind == "Kept" else 48), "its state saves reading again"


def test_a_state_is_stored_only_between_batches_and_where_json_keeps_it() -> None:
    class Tupled:
        def __iter__(self) -> Iterator[Any]:
            yield from [(torch.zeros(1), 0)] * 5
            raise KeyboardInterrupt

        def state_dict(self) -> dict[str, Any]:
            return {"place": (1, 2)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    class Placed(Tupled):
        def state_dict(self, samples: int = 0) -> dict[str, Any]:
            return {"place": [1, 2]}

    class Counting(Placed):
        def state_dict(self, samples: int) -> dict[str, Any]:  # type: ignore[override]
            raise AssertionError

    states = []
    for dataset in (Tupled(), Placed(), Counting()):
        split = StreamSplit("a", dataset, 0, 9)
        batches = StreamBatches(split, 3, 0, drop_last=False).epoch(0)
        next(batches)
        states.append(split.read_state(0, 1))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert split.read_state(0, 1) is None, "two samples of the next batch were read"
    assert states == [None, {"place": [1, 2]}, None]


def test_each_process_takes_its_part_of_a_batch_from_its_own_iterable(tmp_path: Path) -> None:
    rows = []
    for number in range(2):
        batches = make_batches(tmp_path)
        batches.select_local = lambda ids, number=number: ids[8 * number : 8 * number + 8]  # type: ignore[misc]
        parts = list(batches.epoch(0))
        assert [len(part) for part in parts] == [8, 8, 8]
        assert parts[1].ids.tolist() == list(range(16 + 8 * number, 24 + 8 * number))
        rows.append(read(iter(parts)))
    assert not torch.isin(*rows).any(), "random numbers go by the position in the whole batch"


REFUSED = {
    "no length": ("{kind: Numbers}", "seed: 0", "1", saying("numbers-iterable-length")),
    "several processes": ("{kind: Sized}", "seed: 0", "2", saying("iterable-each-reads-own")),
    "ends early": ("{count: 20}", "epoch_steps: 3", "1", saying("iterable-ended-batch")),
}


@pytest.mark.parametrize(("arguments", "train", "processes", "check"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    train: str,
    processes: str,
    check: Callable[[BaseException], bool],
) -> None:
    monkeypatch.setenv(world.WORLD_SIZE, processes)
    data = f"{NAMES}, arguments: {arguments}"
    job = own_job.job(tmp_path, {"my_data.py": DATA}, data=data, train=train)
    with pytest.raises(DataError, match=r"data\.file: training data of load\(\) in my_data\.py", check=check):
        read(batches_of(load(job), job.train.batch, 0).epoch(0))


def test_a_generator_and_targets_without_names_are_refused(tmp_path: Path) -> None:
    parts = {"data": f"{NAMES}, factory: load_generator", "train": "epoch_steps: 3"}
    with pytest.raises(DataError, check=saying("generator-read-only-once")):
        load(own_job.job(tmp_path, {"my_data.py": DATA}, **parts))
    with pytest.raises(DataError, check=saying("iterable-targets-known-read")):
        make_batches(tmp_path, data="targets: classes")


def test_what_would_read_all_of_it_is_left_out(tmp_path: Path) -> None:
    job = own_job.job(tmp_path, {"my_data.py": DATA}, data=NAMES, train="epoch_steps: 3")
    dataset = load(job)
    (row,) = measure.fit_simple_models(job, dataset, 60)
    assert isinstance(row, Skipped)
    assert says(row.reason, "training-data-iterable-fair")
    hardware, workload = read_hardware(MACHINES / "t4.json"), Workload(streams=True, decoded=False)
    assert loader_workers.choose(job, hardware, workload).value == 0
    assert "iterable" in (loader_workers.refuse(job, hardware, workload, 2) or "")
