"""How many shards are fetched at the same time, on links of which the number is known that fills them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.data.streaming.fetch_width import MAX_WIDTH, START_WIDTH, FetchWidth
from drivetrain.report.log_series import Series
from drivetrain.report.sections.machine import _describe_shards
from tests.data.streaming import shards
from tests.messages import says

SHARD = 64e6


class Link:
    """A store that takes some seconds for a shard, behind a link that carries so many bytes a second."""

    def __init__(self, carries: float, takes: float, needs: float) -> None:
        self.carries, self.takes, self.needs = carries, takes, needs
        self.clock, self.counts = 0.0, dict.fromkeys(("bytes", "fetches", "waited", "busy"), 0.0)

    def fetch(self, width: int) -> Mapping[str, float]:
        """Fetch as many shards as a decision needs; batches stand still if more is needed than comes."""
        count = 2 * width
        seconds = count * SHARD / min(self.carries, width * SHARD / self.takes)
        still = max(0.0, 1 - count * SHARD / seconds / self.needs)
        more = {"bytes": count * SHARD, "fetches": count, "busy": seconds, "waited": still * seconds}
        self.clock += seconds
        self.counts = {name: value + more[name] for name, value in self.counts.items()}
        return self.counts


def decided(link: Link, most: int = MAX_WIDTH) -> FetchWidth:
    found = FetchWidth()
    found.decide(link.counts, 0.0, most)
    for _ in range(12):
        found.decide(link.fetch(found.width), link.clock, most)
    return found


@pytest.mark.parametrize(
    ("carries", "takes", "needs", "width", "said"),
    [
        (1e9, 10.0, 1e6, START_WIDTH, "do not stand still"),
        (25e6, 1.0, 100e6, START_WIDTH, "more at a time brought no more"),
        (100e6, 10.0, 1e9, 16, "more at a time brought no more"),
        (1e9, 10.0, 50e6, 8, "do not stand still"),
        (1e12, 10.0, 1e12, MAX_WIDTH, "more are not tried"),
    ],
    ids=["enough", "full link", "far store", "until it is enough", "never full"],
)
def test_as_many_as_bring_more(carries: float, takes: float, needs: float, width: int, said: str) -> None:
    found = decided(Link(carries, takes, needs))
    assert found.width == width, found
    assert said in found.reason, found.reason
    assert found.take_news()
    assert not found.take_news()


def test_not_more_than_the_cache_has_space_for() -> None:
    found = decided(Link(1e12, 10.0, 1e12), most=6)
    assert found.width == START_WIDTH
    assert says(found.reason, "cache-space-time")


def test_nothing_is_decided_by_a_few_shards() -> None:
    found = FetchWidth()
    assert not found.decide({"bytes": 0, "fetches": 0, "waited": 0, "busy": 0}, 0.0, MAX_WIDTH)
    assert not found.decide({"bytes": 1e9, "fetches": 2 * START_WIDTH - 1, "waited": 9, "busy": 9}, 9.0, MAX_WIDTH)
    assert (found.width, found.rates, found.take_news()) == (START_WIDTH, {}, False)


@pytest.mark.parametrize(
    ("waited", "received", "unpacked", "said"),
    [
        (0.1, 9.0, 1.0, "was not the limit"),
        (5.0, 9.0, 1.0, "the link, or the store"),
        (5.0, 1.0, 9.0, "more CPUs would help"),
    ],
)
def test_the_report_says_what_held_them_up(waited: float, received: float, unpacked: float, said: str) -> None:
    row = {"bytes": 1 << 30, "fetches": 4, "again": 0, "waited": waited, "busy": 10.0, "received": received}
    row |= {"unpacked": unpacked, "at_once": 8}
    telemetry = {}
    for key, value in row.items():
        telemetry[f"shard_{key}"] = Series(f"shard_{key}")
        telemetry[f"shard_{key}"].xs.append(1.0)
        telemetry[f"shard_{key}"].ys.append(value)
    (line,) = _describe_shards(telemetry)
    assert "They came at 102 MiB/s, 8 at a time." in line
    assert said in line


def test_real_shards_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    shards.folder(tmp_path / "s", ".parquet")
    data = load(shards.job(tmp_path, "s", streams=2))
    assert sum(map(len, Batches(data.train, 12, 0, data.order).epoch(0)))
    counts = data.train.images.reader.cache.counts.to_json()  # type: ignore[attr-defined]
    assert counts["busy"] > 0
    assert counts["unpacked"] > 0
    assert counts["received"] == 0, "they are on this machine"
