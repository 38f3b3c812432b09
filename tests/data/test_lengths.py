"""Lengths of texts stay on the host with their batch, wherever its tensors are."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Batch, find_known_lengths, read_lengths
from drivetrain.data.load_data import load
from drivetrain.data.loader import batches
from drivetrain.data.text import length_buckets
from tests import reports

LENGTHS = [3, 9, 4, 4]


def batch() -> Batch:
    mask = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
    return Batch(np.arange(4), (mask, mask), {"": torch.arange(4)}, np.array(LENGTHS))


def test_they_go_with_the_batch_to_a_device_that_nobody_reads() -> None:
    pickled_batch = pickle.loads(pickle.dumps(batch()))
    device_batch = pickled_batch.to(torch.device("meta"))
    assert read_lengths(device_batch.inputs[-1]).tolist() == LENGTHS
    assert find_known_lengths(device_batch.inputs[0]) is None
    for part, lengths in (
        (device_batch.between(1, 3), [9, 4]),
        (device_batch.take_rows(np.array([3, 0])), [4, 3]),
        (next(device_batch.split(2)), [3, 9]),
        (replace(device_batch, ids=device_batch.ids + 1), LENGTHS),
    ):
        assert read_lengths(part.inputs[-1]).tolist() == lengths


def test_a_batch_is_cut_by_them() -> None:
    device_batch = batch().to(torch.device("meta"))
    buckets = [read_lengths(part.inputs[-1]).tolist() for part in length_buckets.TokenSplitter(9)(device_batch, 4)]
    rows = [
        read_lengths(part.inputs[-1]).tolist()
        for part in length_buckets.TokenSplitter(12, in_order=True)(device_batch, 4)
    ]
    assert (buckets, rows) == ([[9], [4, 4], [3]], [[3, 9], [4, 4]])


def test_the_loader_counts_them(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    split = load(reports.job(tmp_path)).train
    first_batch = next(batches.fetch_in_order(split, 5))
    assert first_batch.lengths is not None
    assert first_batch.lengths.tolist() == split.lengths[:5].tolist() == first_batch.inputs[-1].sum(dim=1).tolist()  # type: ignore[attr-defined]


def test_what_nobody_noted_is_counted_on_the_device() -> None:
    mask = torch.ones(2, 3, dtype=torch.int64)
    assert read_lengths(mask).tolist() == [3, 3]
    with pytest.raises(RuntimeError):
        read_lengths(mask.to("meta"))
