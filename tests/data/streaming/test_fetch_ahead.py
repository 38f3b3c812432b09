"""What is fetched ahead ends with the batches that it is fetched for, and a failure reaches the worker processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from drivetrain.data.load_data import load
from drivetrain.data.streaming import fetch_ahead
from drivetrain.data.streaming.cache import Lease, ShardCache
from drivetrain.data.streaming.open_stream import fetch_groups_ahead
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.system import fault_points
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop
from drivetrain.training.nonfinite import NotFinite
from drivetrain.training.saver import Saver
from tests import tiny
from tests.data.streaming import shards
from tests.training.hooked_run import SilentProgress


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    gc.disable()
    yield tmp_path / "cache/shards"
    gc.enable()


def reader_of(data: object) -> ShardReader:
    return data.train.images.reader  # type: ignore[attr-defined]


def test_a_rollback_ends_what_was_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.write_shards(tmp_path / "s", ".parquet")
    training_run = tiny.assemble_plain_run(shards.job(tmp_path, "s", epochs=1), tmp_path / "run")
    (tmp_path / "run").mkdir()
    training_run.metrics, saver, lease_ended = MetricsLog(tmp_path / "run"), Saver(training_run), list[bool]()
    saver.save_final()

    def spoil(moment: str, *subjects: object) -> None:
        if (
            moment == "step"
            and (training_run.counters.epoch, training_run.counters.batch) == (0, 3)
            and not lease_ended
        ):
            assert reader_of(training_run.dataset).lease is not None
            raise NotFinite("a number is not finite")
        if moment == "roll back":
            lease_ended.append(reader_of(training_run.dataset).lease is None)

    monkeypatch.setattr(fault_points, "listener", spoil)
    assert loop.fit(training_run, saver, SilentProgress()) == "1 epoch trained"  # type: ignore[arg-type]
    assert lease_ended == [True]
    training_run.metrics.close()


def test_new_batches_end_what_is_fetched_for_old_ones(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s", ".parquet")
    data = load(shards.job(tmp_path, "s"))
    reader, groups = reader_of(data), np.array_split(np.arange(100), 8)
    with fetch_groups_ahead(reader, groups) as old:
        first_lease = reader.lease
        with fetch_groups_ahead(reader, groups):
            assert reader.lease is not None
            assert reader.lease is not first_lease
            assert first_lease is not None
            assert not first_lease.path.exists()
            old(1)
    assert reader.lease is None


def test_processes_look_ahead_into_their_share_of_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three that looked as far as all of it pushed out at their horizon what the others had just fetched: 1.3 times the data."""
    monkeypatch.setattr(fetch_ahead, "RECOUNT_SECONDS", -1.0)
    shards.write_shards(tmp_path / "s", ".parquet", 24)
    reader = reader_of(load(shards.job(tmp_path, "s")))
    largest = max(reader.size(shard) + reader.count_packed_bytes(shard) for shard in reader.cached())
    reader.cache = ShardCache(cache, 12 * largest)
    groups = np.array_split(np.arange(int(reader.index.starts[-1])), 24)
    with fetch_groups_ahead(reader, groups) as advance:
        alone = len(reader.ranks)
        other_leases = [Lease(cache) for _ in range(2)]
        advance(1)
        assert 1 < len(reader.ranks) <= alone // 3 + 1
        for lease in other_leases:
            lease.end()
        advance(2)
        assert len(reader.ranks) == alone
