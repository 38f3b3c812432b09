"""What is fetched from stores is counted, over worker processes and starts, and told in the records and the report."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.data.streaming.cache import FetchCounts
from drivetrain.report.blocks import Text
from drivetrain.report.log_series import Series, collect_series
from drivetrain.report.sections.machine import _describe_shards, time_section
from drivetrain.training.progress import measure_since_last_call
from tests.data.streaming import shards
from tests.messages import begins_with, ends_with


def test_shards_and_what_comes_again() -> None:
    counts = FetchCounts()
    for name in ("a", "b", "a", "a"):
        counts.add(name, 10)
    counts.add_wait(0.5)
    counts.add_wait(0.25)
    assert {"bytes": 40, "fetches": 4, "again": 2, "waited": 0.75}.items() <= counts.to_json().items()
    assert pickle.loads(pickle.dumps(counts)).to_json() == FetchCounts().to_json()


def test_worker_processes_count_their_waits() -> None:
    counts = FetchCounts()
    for _ in range(2):
        if not (child := os.fork()):
            counts.add_wait(0.5)
            os._exit(0)
        os.waitpid(child, 0)
    assert counts.waited == 1.0


@pytest.fixture
def run() -> Any:
    return SimpleNamespace(
        counters=SimpleNamespace(step=1, samples=1),
        clock=SimpleNamespace(phases={}),
        device=torch.device("cpu"),
        readable=SimpleNamespace(fetched=FetchCounts()),
    )


def test_a_sample_has_what_came_since_the_last(run: Any) -> None:
    since = measure_since_last_call(cast(Any, run))
    run.readable.fetched.add("a", 10)
    run.readable.fetched.add_wait(0.5)
    first, second = since(), since()
    assert {key: value for key, value in first.items() if key.startswith("shard_")} == {
        "shard_bytes": 10,
        "shard_fetches": 1,
        "shard_again": 0,
        "shard_waited": 0.5,
        "shard_busy": 0.0,
        "shard_received": 0.0,
        "shard_unpacked": 0.0,
    }
    assert second["shard_bytes"] == second["shard_waited"] == 0
    run.readable.fetched = None
    assert not any(key.startswith("shard_") for key in measure_since_last_call(cast(Any, run))())


@pytest.mark.parametrize("refetches", [0, 3])
def test_the_report_adds_up_all_starts(refetches: int) -> None:
    row = {"shard_bytes": 1 << 30, "shard_fetches": 4, "shard_again": refetches, "shard_waited": 1.5}
    rows = [{"seconds": seconds} | row for seconds in (1.0, 2.0, 1.0)]
    section = time_section(
        collect_series(rows, "seconds", continues=True),
        cast(
            Any,
            SimpleNamespace(
                phases={},
                peak_memory=None,
                memory_limit=None,
                efficiency={},
                forecast={},
                watching={},
                samples_per_second=None,
                seconds=1.0,
            ),
        ),
        None,
    )
    assert section is not None
    (line,) = [block.text for block in section.blocks if isinstance(block, Text) and block.text.startswith("Shards")]
    how = "9 of them again, for which the cache had no space" if refetches else "each once"
    assert begins_with(line, "shards-gib-fetched-store", "3.0", 12, how)
    assert ends_with(line, "stood-still-shards", "4.5")


@pytest.mark.parametrize(
    ("waited", "received", "unpacked", "expected_text"),
    [
        (0.1, 9.0, 1.0, "was not the limit"),
        (5.0, 9.0, 1.0, "the link, or the store"),
        (5.0, 1.0, 9.0, "more CPUs would help"),
    ],
)
def test_the_report_says_what_held_them_up(waited: float, received: float, unpacked: float, expected_text: str) -> None:
    row = {"bytes": 1 << 30, "fetches": 4, "again": 0, "waited": waited, "busy": 10.0, "received": received}
    row["unpacked"] = unpacked
    telemetry = {}
    for key, value in row.items():
        telemetry[f"shard_{key}"] = Series(f"shard_{key}")
        telemetry[f"shard_{key}"].xs.append(1.0)
        telemetry[f"shard_{key}"].ys.append(value)
    (line,) = _describe_shards(telemetry)
    assert "They came at 102 MiB/s." in line
    assert expected_text in line


def test_real_shards_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    shards.write_shards(tmp_path / "s", ".parquet")
    data = load(shards.job(tmp_path, "s", streams=2))
    assert sum(map(len, Batches(data.train, 12, 0, data.order).epoch(0)))
    counts = data.train.images.reader.cache.counts.to_json()  # type: ignore[attr-defined]
    assert counts["busy"] > 0
    assert counts["unpacked"] > 0
    assert counts["received"] == 0, "they are on this machine"
