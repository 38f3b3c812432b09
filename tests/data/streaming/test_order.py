"""The order of streamed samples: each once an epoch, from all spans, and of nothing but its arguments."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from drivetrain.data.loader.batches import StreamOrder
from drivetrain.distributed.batch_parts import BatchParts
from drivetrain.distributed.ranks import Ranks

CASES = [
    ([10] * 20, 4, 2, 8),
    ([7, 1, 0, 13, 5, 9, 2, 30], 3, 2, 8),
    ([100], 8, 4, 16),
    ([3, 2], 8, 1, 4),
    ([1] * 50, 7, 3, 10),
    ([1], 8, 4, 32),
    ([64] * 40, 8, 4, 32),
    ([5, 0, 0, 6], 2, 1, 3),
    ([17] * 9, 5, 9, 6),
]


@pytest.mark.parametrize(("sizes", "streams", "window", "batch"), CASES)
def test_each_sample_once_an_epoch(sizes: list[int], streams: int, window: int, batch: int) -> None:
    for seed in range(3):
        order = StreamOrder(sizes, seed, streams, window, batch)
        for epoch in range(3):
            assert sorted(order(epoch).tolist()) == list(range(sum(sizes)))


@pytest.mark.parametrize(("sizes", "streams", "window", "batch"), CASES)
def test_random_sizes_too(sizes: list[int], streams: int, window: int, batch: int) -> None:
    random = np.random.default_rng(len(sizes))
    for _ in range(20):
        some = random.integers(0, 40, random.integers(1, 30)).tolist()
        if not sum(some):
            continue
        order = StreamOrder(
            some, int(random.integers(99)), int(random.integers(1, 20)), int(random.integers(1, 9)), batch
        )
        assert sorted(order(1).tolist()) == list(range(sum(some)))


def test_a_function_of_its_arguments() -> None:
    one, other = (StreamOrder([20] * 30, 5, 4, 2, 16) for _ in range(2))
    first = one(0)
    assert not np.array_equal(first, one(1))
    assert np.array_equal(first, other(0))
    assert np.array_equal(first, one(0)), "asked again after another epoch"
    assert np.array_equal(first, pickle.loads(pickle.dumps(one))(0))
    assert not np.array_equal(first, StreamOrder([20] * 30, 6, 4, 2, 16)(0))


def test_a_batch_has_its_share_of_every_span() -> None:
    order = StreamOrder([25] * 40, 0, 8, 2, 32)
    spans = [set(np.concatenate(span).tolist()) for span in order.windows(0)]
    ids = order(0)
    for start in range(0, 960, 32):
        batch = ids[start : start + 32].tolist()
        assert [sum(id_ in span for id_ in batch) for span in spans] == [4] * 8


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_processes_get_the_same_batches_and_read_different_spans(count: int) -> None:
    order = StreamOrder([25] * 40, 0, 8, 2, 32)
    spans = [set(np.concatenate(span).tolist()) for span in order.windows(0)]
    ids = order(0)
    read: list[set[int]] = [set() for _ in range(count)]
    for start in range(0, 960, 32):
        batch = ids[start : start + 32]
        shares = [BatchParts(Ranks(number, count), count, 32).select_own_samples(batch) for number in range(count)]
        assert np.array_equal(np.concatenate(shares), batch)
        for number, share in enumerate(shares):
            read[number] |= {position for position, span in enumerate(spans) for id_ in share.tolist() if id_ in span}
    if 8 % count == 0:
        assert [len(span_numbers) for span_numbers in read] == [8 // count] * count


def test_the_samples_of_a_batch_are_from_one_window_of_each_span() -> None:
    """So the cache needs `window` shards of each stream, and one more where a batch crosses a border."""
    sizes, window = [20] * 48, 3
    order = StreamOrder(sizes, 1, 4, window, 16)
    shard = np.repeat(np.arange(48), 20)
    ids = order(0)
    for start in range(0, len(ids), 16):
        batch_shards = set(shard[ids[start : start + 16]].tolist())
        window_shards = [
            {int(shard_number) for shard_number in shard[part]} for span in order.windows(0) for part in span
        ]
        touched = [part for part in window_shards if part & batch_shards]
        assert len(touched) <= 2 * 4
    assert all(
        len({int(shard_number) for shard_number in shard[part]}) <= window for span in order.windows(0) for part in span
    )
