"""What is fetched ahead ends with the batches that it is fetched for, and a failure reaches the worker processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.data.load import load
from runtime.data.streaming import fetch_ahead
from runtime.data.streaming.cache import ShardCache
from runtime.data.streaming.lease import Lease
from runtime.data.streaming.open_stream import fetching
from runtime.data.streaming.reader import ShardReader
from runtime.tracking.metrics_log import MetricsLog
from runtime.training import loop
from runtime.training.nonfinite import NotFinite
from runtime.training.saver import Saver
from tests import tiny
from tests.data.streaming import shards
from tests.training.test_nonfinite import Still


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    gc.disable()
    yield tmp_path / "cache/shards"
    gc.enable()


def reader_of(data: object) -> ShardReader:
    return data.train.images.reader  # type: ignore[attr-defined, no-any-return]


def test_a_rollback_ends_what_was_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.folder(tmp_path / "s", ".parquet")
    made = tiny.plain(shards.job(tmp_path, "s", epochs=1), tmp_path / "run")
    (tmp_path / "run").mkdir()
    made.metrics, saver, seen = MetricsLog(tmp_path / "run"), Saver(made), list[bool]()
    saver.final()
    step, back = loop._step, loop._go_back

    def spoiled(run: object, batch: object, place: tuple[int, int], *given: object) -> object:
        if place == (0, 3) and not seen:
            assert reader_of(made.dataset).lease is not None
            raise NotFinite("a number is not finite")
        return step(run, batch, place, *given)  # type: ignore[arg-type]

    def looked(*given: object) -> None:
        seen.append(reader_of(made.dataset).lease is None)
        back(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "_step", spoiled)
    monkeypatch.setattr(loop, "_go_back", looked)
    assert loop.fit(made, saver, Still()) == "1 epoch trained"  # type: ignore[arg-type]
    assert seen == [True]
    made.metrics.close()


def test_new_batches_end_what_is_fetched_for_old_ones(tmp_path: Path) -> None:
    shards.folder(tmp_path / "s", ".parquet")
    data = load(shards.job(tmp_path, "s"))
    reader, groups = reader_of(data), np.array_split(np.arange(100), 8)
    with fetching(reader, groups) as old:
        left = reader.lease
        with fetching(reader, groups):
            assert reader.lease is not None
            assert reader.lease is not left
            assert left is not None
            assert not left.path.exists()
            old(1)
    assert reader.lease is None


def test_processes_look_ahead_into_their_share_of_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three that looked as far as all of it pushed out at their horizon what the others had just fetched: 1.3 times the data."""
    monkeypatch.setattr(fetch_ahead, "COUNT", -1.0)
    shards.folder(tmp_path / "s", ".parquet", 24)
    reader = reader_of(load(shards.job(tmp_path, "s")))
    largest = max(reader.size(shard) + reader.beside(shard) for shard in reader.cached())
    reader.cache = ShardCache(cache, 12 * largest)
    groups = np.array_split(np.arange(int(reader.index.starts[-1])), 24)
    with fetching(reader, groups) as advance:
        alone = len(reader.ranks)
        others = [Lease(cache) for _ in range(2)]
        advance(1)
        assert 1 < len(reader.ranks) <= alone // 3 + 1
        for each in others:
            each.end()
        advance(2)
        assert len(reader.ranks) == alone
