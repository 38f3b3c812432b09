"""Batches made ahead by a thread: the same ones, pinned, their errors when they are due, no thread left."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.custom.map_dataset import open_split
from drivetrain.data.dataset import Batch
from drivetrain.data.loader.batches import Batches, prefetch
from tests import tiny
from tests.data.loader.batch_pairs import assert_equal


def test_batches_ahead_are_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pinning_threads: list[threading.Thread] = []
    monkeypatch.setattr(Batch, "pin_memory", lambda self: (pinning_threads.append(threading.current_thread()), self)[1])
    batches = Batches(tiny.dataset().train, 10, 0)
    plain = list(batches.epoch(1, 2))
    batches.pin = True
    for one, two in zip(plain, batches.epoch(1, 2), strict=True):
        assert_equal(one, two)
    assert len(pinning_threads) == len(plain) == 5
    assert threading.main_thread() not in pinning_threads


def test_a_dataset_with_random_numbers_is_not_read_during_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both draw from the global generators: in a thread the samples were whatever the step had left of them."""

    class Noise(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.0005)
            return torch.rand(3), index % 2

    monkeypatch.setattr(Batch, "pin_memory", lambda self: self)
    split = open_split(Noise(), "noise", 0)
    split.set_target_form(lambda targets: targets, None)
    batches = Batches(split, 5, 0)
    plain = list(batches.epoch(0))
    batches.pin = True
    for one, two in zip(plain, batches.epoch(0), strict=True):
        for _ in range(20):  # a step
            torch.default_generator.manual_seed(1)
            torch.rand(2)
            time.sleep(0.0002)
        assert_equal(one, two)


def test_the_loader_of_torch_pins_batches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.pin_memory import pin_memory

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    batch = Batch(np.arange(2), (torch.zeros(2), torch.ones(2)), {"": torch.zeros(2)})
    pinned = pin_memory(batch)
    assert [x.tolist() for x in (*pinned.inputs, *pinned.targets.values())] == [[1, 1], [2, 2], [1, 1]]
    assert batch.inputs[0].tolist() == [0, 0]


def test_an_error_in_prefetching_is_raised_when_its_batch_is_due() -> None:
    def make(ids: Any) -> Any:
        if ids[0] == 2:
            raise ValueError("damaged")
        return ids

    first_items: list[int] = []
    items = prefetch(make, [np.array([n]) for n in range(9)])
    with pytest.raises(ValueError, match="damaged"):
        first_items.extend(int(item[0]) for item in items)
    assert first_items == [0, 1]


def test_no_thread_is_left_of_an_epoch_that_was_broken_off() -> None:
    batch_ids: list[int] = []
    items = prefetch(lambda ids: batch_ids.append(int(ids[0])) or ids, [np.array([n]) for n in range(100)])  # type: ignore[arg-type, return-value]
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert len(batch_ids) <= 4
    assert not [thread for thread in threading.enumerate() if "batches ahead" in thread.name]
