"""Data of one's own: arrays and datasets as batches, and what their targets are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset, random_split

from drivetrain.data.custom import custom_data as custom
from drivetrain.data.custom.iterables import StreamBatches, StreamSplit
from drivetrain.data.custom.map_dataset import ArraySplit, ItemSplit, open_split
from drivetrain.data.dataset import Head
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches, SequentialOrder, fetch, fetch_in_order
from drivetrain.errors import DataError
from tests.messages import begins_with, ends_with
from tests.own_job import define_arrays, job
from tests.paths import IMPORTS

torch.set_num_threads(1)


class Points(TorchDataset[Any]):
    """A map-style dataset that counts how often it is asked."""

    def __init__(self, x: Tensor, y: Tensor, **attributes: Any) -> None:
        self.x, self.y, self.asked = x, y, 0
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return (self.x[index], float(index)), self.y[index]


def draw_samples(samples: int = 37, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(dim=1) > 0).long()


def test_items_and_arrays_are_the_same_batches() -> None:
    x, y = draw_samples()
    one = open_split(Points(x, y), "a", 0)
    two = open_split((x, torch.arange(37.0), y), "b", 0)
    assert isinstance(one, ItemSplit)
    assert isinstance(two, ArraySplit)
    two.set_target_form(Tensor.long, 1)
    for first, second in zip(Batches(one, 8, 0).epoch(0), Batches(two, 8, 0).epoch(0), strict=True):
        assert all(torch.equal(a.float(), b) for a, b in zip(first.inputs, second.inputs, strict=True))
        assert torch.equal(first.targets[""], second.targets[""])


def test_a_random_split_of_arrays_is_gathered_by_index() -> None:
    x, y = draw_samples()
    part, _ = random_split(TensorDataset(x, y), [30, 7], torch.Generator().manual_seed(1))
    inner, _ = random_split(part, [20, 10], torch.Generator().manual_seed(2))
    split = open_split(inner, "a", 0)
    assert isinstance(split, ArraySplit)
    assert len(split) == 20
    expected = torch.stack([inner[i][0] for i in range(20)])
    assert torch.equal(split.gather(np.arange(20))[0], expected)
    assert torch.equal(split.all_targets(), torch.stack([inner[i][1] for i in range(20)]))


def test_a_memory_map_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0, dtype=">f4").reshape(6, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    split = open_split((mapped, np.arange(6)), "a", 0)
    assert split.gather(np.array([5, 0]))[0].tolist() == [[10, 11], [0, 1]]


@pytest.mark.parametrize("listed", [True, False])
def test_targets_are_taken_from_the_dataset_if_it_lists_them(listed: bool) -> None:
    x, y = draw_samples()
    points = Points(x, y, **({"targets": y.tolist()} if listed else {}))
    split = open_split(points, "a", 0)
    assert isinstance(split, ItemSplit)
    assert torch.equal(split.all_targets(), y)
    assert points.asked == (3 if listed else 37)
    assert torch.equal(split.targets[""], y)


def test_a_targets_attribute_that_contradicts_the_items_is_ignored() -> None:
    x, y = draw_samples()
    split = open_split(Points(x, y, targets=(1 - y).tolist()), "a", 0)
    assert isinstance(split, ItemSplit)
    assert torch.equal(split.all_targets(), y)


def test_targets_of_several_types_become_one() -> None:
    items = [(torch.zeros(2), 1 if index < 1100 else 0.5) for index in range(2100)]
    split = open_split(items, "a", 0)
    assert isinstance(split, ItemSplit)
    assert split.all_targets().tolist() == [target for _, target in items]


READ_TARGETS = """
import numpy as np, torch
from drivetrain.data.custom.map_dataset import ItemSplit
from drivetrain.system import process_tree

class Rows:
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return torch.from_numpy(np.full(1024, index, np.float32)), index % 2

before = process_tree.read_own_bytes()
assert ItemSplit("a", Rows(), 0).all_targets().tolist() == [0, 1] * 50_000
print(process_tree.read_own_bytes() - before >> 20)
"""
"""Reads the targets of 400 MB of samples."""


def test_reading_targets_keeps_no_samples() -> None:
    """Targets between freed samples kept their pages: 380,000 samples of 4 KB took 900 MB of a limit of 700."""
    done = subprocess.run(
        [sys.executable, "-c", READ_TARGETS],
        env={**os.environ, "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 100


class Drawing(TorchDataset[Any]):
    """Items with random numbers of all three kinds."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        import random

        return torch.tensor([torch.rand(()).item(), float(np.random.rand()), random.random()]), index % 2


def draw_epoch(epoch: int, size: int = 4, *, shuffled: bool = True, workers: int = 0, ranks: int = 1) -> torch.Tensor:
    """What each sample of an epoch draws, (samples, 3), in the order of the samples."""
    order = None if shuffled else SequentialOrder(12)
    rows = torch.empty(12, 3)
    for rank in range(ranks):
        batches = Batches(open_split(Drawing(), "a", 5), size, 0, order)
        batches.workers = workers
        batches.select_local = lambda ids, rank=rank: ids[rank::ranks]  # type: ignore[misc]
        for batch in batches.epoch(epoch):
            rows[torch.from_numpy(batch.ids)] = batch.inputs[0]
    return rows


@pytest.mark.parametrize(
    "how",
    [{"size": 1}, {"size": 12}, {"shuffled": False}, {"workers": 2}, {"ranks": 2}, {"ranks": 4, "size": 4}],
    ids=str,
)
def test_what_a_sample_draws_depends_on_seed_epoch_and_sample_alone(how: dict[str, Any]) -> None:
    """With a batch size of 1 or without shuffling each epoch had the same augmentation; two processes had another."""
    epochs = [draw_epoch(epoch, **how) for epoch in range(3)]
    for epoch, rows in enumerate(epochs):
        assert torch.equal(rows, draw_epoch(epoch))
    all_draws = torch.cat(epochs).flatten()
    assert len(all_draws.unique()) == len(all_draws)


def test_validation_draws_the_same_each_time() -> None:
    by_threes, by_fives = (
        torch.cat([batch.inputs[0] for batch in fetch_in_order(open_split(Drawing(), "a", 5), n)]) for n in (3, 5)
    )
    assert torch.equal(by_threes, by_fives)


@pytest.mark.parametrize(("size", "ranks"), [(8, 1), (4, 1), (1, 1), (8, 2)])
def test_a_sample_that_a_sampler_repeats_draws_anew_each_time(size: int, ranks: int) -> None:
    """Its draws depended on the batches: with a batch size of 1 all repetitions had the same."""

    class Repeated(SequentialOrder):
        def __call__(self, epoch: int) -> Any:
            return np.array([3, 0, 3, 7, 3, 1, 2, 3])

    draws_by_sample: dict[int, list[float]] = {}
    for rank in range(ranks):
        batches = Batches(open_split(Drawing(), "a", 5), size, 0, Repeated(8))
        batches.select_local = lambda ids, rank=rank: ids[rank * len(ids) // ranks : (rank + 1) * len(ids) // ranks]  # type: ignore[misc]
        for batch in batches.epoch(0):
            for index, row in zip(batch.ids.tolist(), batch.inputs[0], strict=True):
                draws_by_sample.setdefault(index, []).extend(row.tolist())
    assert {index: len(rows) // 3 for index, rows in draws_by_sample.items()} == {3: 4, 0: 1, 7: 1, 1: 1, 2: 1}
    assert len(set(draws_by_sample[3])) == 12
    expected = torch.cat([b.inputs[0] for b in Batches(open_split(Drawing(), "a", 5), 8, 0, Repeated(8)).epoch(0)])
    assert sorted(draws_by_sample[3]) == sorted(expected[[0, 2, 4, 7]].flatten().tolist())


def test_evaluate_draws_what_validation_drew() -> None:
    """It opens the data under another name and seed."""
    validation_split, evaluation_split = open_split(Drawing(), "validation data", 5), open_split(Drawing(), "read()", 0)
    assert torch.equal(validation_split.gather(np.arange(12))[0], evaluation_split.gather(np.arange(12))[0])
    assert not torch.equal(
        validation_split.gather(np.arange(12))[0], validation_split.at_epoch(0).gather(np.arange(12))[0]
    )


def test_an_iterable_draws_for_each_position() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return (Drawing()[index] for index in range(12))

    def epoch(number: int, size: int) -> torch.Tensor:
        split = StreamSplit("a", Stream(), 5, 12)
        return torch.cat([b.inputs[0] for b in StreamBatches(split, size, 0, drop_last=False).epoch(number)])

    assert torch.equal(epoch(0, 1), epoch(0, 5))
    assert not torch.isin(epoch(0, 4), epoch(1, 4)).any()


def test_random_numbers_of_a_dataset_depend_on_seed_and_batch() -> None:
    split = open_split(Drawing(), "a", 5)
    batches = Batches(split, 4, seed=0)
    first = [batch.inputs[0] for batch in batches.epoch(0)]
    torch.rand(7)
    second_pass = [batch.inputs[0] for batch in batches.epoch(0)]
    resumed = [batch.inputs[0] for batch in batches.epoch(0, start=2)]
    later = [batch.inputs[0] for batch in batches.epoch(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, second_pass, strict=True))
    assert torch.equal(first[2], resumed[0])
    all_draws = torch.cat(first).flatten()
    assert len(all_draws.unique()) == len(all_draws)
    assert not torch.isin(all_draws, torch.cat(later)).any()


class Failing(Drawing):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise ValueError("a broken file")
        return super().__getitem__(index)


def test_a_worker_gives_the_same_batches_and_the_same_message() -> None:
    groups = [np.arange(4), np.arange(4, 8)]
    local_batches, worker_batches = (
        list(fetch(open_split(Drawing(), "a", 0), groups, workers=workers)) for workers in (0, 1)
    )
    assert all(torch.equal(a.inputs[0], b.inputs[0]) for a, b in zip(local_batches, worker_batches, strict=True))
    with pytest.raises(DataError) as worker_error:
        list(fetch(open_split(Failing(), "a", 0), [*groups, np.arange(8, 12)], workers=1))
    with pytest.raises(DataError) as local_error:
        list(fetch(open_split(Failing(), "a", 0), [*groups, np.arange(8, 12)], workers=0))
    assert str(worker_error.value) == str(local_error.value)
    assert begins_with(str(worker_error.value), "sample-raised-valueerror-broken", 9, "test_custom_data.py")


@pytest.mark.parametrize(
    ("targets", "options", "head", "shape"),
    [
        ("torch.arange(6) % 3", "", Head("", classes=("0", "1", "2")), (6,)),
        ("(torch.arange(6) % 3).to(torch.uint8)", "names: [a, b, c]", Head("", classes=("a", "b", "c")), (6,)),
        ("torch.arange(6) % 2 == 0", "", Head("", classes=("0", "1")), (6,)),
        ("torch.eye(6).long()[:, :3]", "", Head("", classes=("0", "1", "2"), several=True), (6, 3)),
        ("np.arange(6.0)", "", Head("", columns=("value",), mean=(0.0,), std=(1.0,)), (6, 1)),
        (
            "np.arange(12.0).reshape(6, 2)",
            "names: [u, v]",
            Head("", columns=("u", "v"), mean=(0.0, 0.0), std=(1.0, 1.0)),
            (6, 2),
        ),
        ("torch.arange(6)", "targets: numbers", Head("", columns=("value",), mean=(0.0,), std=(1.0,)), (6, 1)),
    ],
)
def test_what_targets_are(targets: str, options: str, head: Head, shape: tuple[int, ...], tmp_path: Path) -> None:
    data = load(job(tmp_path, define_arrays(f"torch.zeros(6, 4), {targets}"), **({"data": options} if options else {})))
    assert data.heads == {"": head}
    assert tuple(data.train.targets[""].shape) == shape
    assert data.train.targets[""].dtype == (torch.int64 if head.classes and not head.several else torch.float32)


def test_numbers_of_double_precision_become_single(tmp_path: Path) -> None:
    data = load(job(tmp_path, define_arrays("np.ones((6, 4)), np.arange(6) % 2")))
    assert custom.as_float32(data.train.gather(np.arange(2)), np.arange(2), None)[0].dtype == torch.float32
    assert data.preprocessing["inputs"] == [{"shape": [4], "type": "float32"}]


def test_a_csv_without_a_reader_is_refused_in_plain_words(tmp_path: Path) -> None:
    """It printed numpy's words about pickled data."""
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError) as caught:
        custom._read_npz(tmp_path / "new.csv", ["inputs"])
    assert ends_with(caught.value.given, "npz-run-trained-without", "new.csv")
    assert "pickle" not in str(caught.value)
