"""Handover: no more loader workers than shared memory has room for, by the size of the batches they make."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from drivetrain.data.loader import batches, workers
from drivetrain.data.loader.batches import Batches
from drivetrain.data.loader.workers import SharedMemory
from drivetrain.training.evaluation import validation
from drivetrain.tuning.memory.size_search import SizeSearch
from tests import tiny
from tests.messages import get_message, says_each

MIB = 1 << 20


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """/dev/shm with 64 MiB free, or what the test says."""
    shm, plain = SimpleNamespace(f_bavail=64 * 256, f_frsize=4096), os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: shm if path == workers.SHARED_MEMORY else plain(path))
    return shm


def split(samples: int = 512) -> tiny.Arrays:
    """Colour images of 224 pixels as bytes, 147 KiB each, and labels."""
    return tiny.Arrays(
        torch.zeros(1, 3, 224, 224, dtype=torch.uint8).expand(samples, -1, -1, -1), torch.zeros(samples).long()
    )


@pytest.mark.parametrize(("count", "expected"), [(1, 4), (32, 4), (64, 2), (128, 1), (256, 0)])
def test_workers_by_the_size_of_a_batch(shared_memory: SimpleNamespace, count: int, expected: int) -> None:
    assert SharedMemory().workers(split(), count, 4)[0] == expected


def test_it_is_reported_once_for_each_size(shared_memory: SimpleNamespace) -> None:
    loader_batches, messages = Batches(split(), 32, 0), []
    loader_batches.workers, loader_batches.report = 4, messages.append
    assert [loader_batches.workers_for(loader_batches.split, 128) for _ in range(3)] == [1, 1, 1]
    assert loader_batches.workers_for(loader_batches.split, 32) == 4
    assert says_each(messages, [get_message("mib-free-batches-samples", "/dev/shm", 64, 128, 18, 1, 4)])


def test_processes_share_shared_memory(shared_memory: SimpleNamespace) -> None:
    assert SharedMemory(processes=2).workers(split(), 64, 4)[0] == 1


def test_without_workers_or_shared_memory_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", gone)
    assert SharedMemory().workers(split(), 10**6, 4) == (4, "")
    assert SharedMemory().workers(split(), 10**6, 0) == (0, "")


def test_the_longest_sample_counts(shared_memory: SimpleNamespace) -> None:
    data = split()
    data.lengths = [1] * 511 + [9]  # type: ignore[attr-defined]
    gathered_ids: list[int] = []
    plain = data.gather
    data.gather = lambda ids: (gathered_ids.extend(ids.tolist()), plain(ids))[1]  # type: ignore[method-assign]
    SharedMemory().workers(data, 8, 4)
    assert gathered_ids == [511]


def test_evaluation_and_size_search_respect_shared_memory(
    tmp_path: Path, shared_memory: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a training whose own batches fit: evaluations make batches up to four times as large, searches any size."""
    training_run = tiny.assemble_run(tmp_path, tiny.job())
    bytes_of_one = 8 * 8 * 4 + 8
    shared_memory.f_bavail, shared_memory.f_frsize = 3 * 16 * bytes_of_one * 2, 1
    training_run.batches.workers = 2
    worker_counts: list[int] = []
    plain = batches.fetch

    def fetch(*arguments: object, workers: int = 0, **options: object) -> object:
        worker_counts.append(workers)
        return plain(*arguments, workers=0, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("drivetrain.data.loader.batches.fetch", fetch)
    list(training_run.batches.epoch(0))
    validation.evaluate(training_run)
    assert worker_counts == [2, 0]
    SizeSearch(training_run).use_size(32)
    assert worker_counts[2:] == [2, 0, 1, 0]
