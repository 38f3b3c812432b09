"""What each process did: written by rank 0, read by the live view, the slowest named."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drivetrain.system.run_files import RANKS_FILE
from drivetrain.tracking import rank_record
from drivetrain.tracking.live.dashboard import MAX_PROCESS_ROWS, format_line
from drivetrain.tracking.live.run_reader import RunReader
from drivetrain.tracking.rank_record import RankRecord, find_slowest
from drivetrain.training.profiling import RankSampler
from tests import ranks_start, tiny
from tests.report_folder import make_live_run
from tests.tracking.live.painted_text import read_text

FAST = RankRecord(0, "alpha", "Xeon", 2, 1000, 8.0, 0.5, 1.5, 400 << 20, 500 << 20)
SLOW = RankRecord(1, "beta", "Xeon", 2, 1000, 9.0, 0.9, 0.1, 400 << 20, 600 << 20)


def test_the_slowest_is_the_one_that_the_others_wait_for() -> None:
    assert FAST.speed == pytest.approx(1000 / 8.5)
    assert find_slowest([FAST, SLOW]) is SLOW
    assert find_slowest([FAST, replace(FAST, rank=1)]) is None
    assert find_slowest([FAST]) is None
    assert find_slowest([FAST, replace(SLOW, samples=0, computing=0.0)]) is None  # it has not begun


def test_a_record_survives_the_way(tmp_path: Path) -> None:
    assert rank_record.record_from_text(rank_record.record_to_text(SLOW)) == SLOW
    for damaged in ("", "{", "[]", '{"rank": "1"}', '{"rank": 1, "samples": []}', '{"rank": 1, "samples": 1e999}'):
        assert rank_record.record_from_text(damaged) is None
    rank_record.write_records(tmp_path, [FAST, SLOW])
    assert rank_record.read_records(tmp_path) == (FAST, SLOW)
    rank_record.write_records(tmp_path / "missing", [FAST])  # as on a full disk: the run goes on
    (tmp_path / RANKS_FILE).write_text('[{"rank": 0, "of a later version": 1}, 7]')
    assert rank_record.read_records(tmp_path) == (RankRecord(0),)
    (tmp_path / RANKS_FILE).write_text('[{"rank"')
    assert rank_record.read_records(tmp_path) == ()


def test_the_live_view_shows_each_process(tmp_path: Path) -> None:
    run = make_live_run(tmp_path / "digits-001")
    assert "rank" not in read_text(RunReader(run).read(), 100)
    rank_record.write_records(run, [FAST, SLOW])
    view = RunReader(run).read()
    text = read_text(view, 100)
    assert "rank 0      118 samples/s" in text
    assert "slowest, waits 9% data, 1% others" in text
    assert format_line(view).endswith("slowest: rank 1 on beta")
    rank_record.write_records(run, [replace(SLOW, rank=rank) for rank in range(20)])
    text = read_text(RunReader(run).read(), 60)
    assert text.count("samples/s") == MAX_PROCESS_ROWS + 1
    assert "the slowest of 20 processes" in text


def test_the_live_view_shows_what_happened_lately(tmp_path: Path) -> None:
    run = make_live_run(tmp_path / "digits-001")
    reader = RunReader(run)
    rank_record.write_records(run, [FAST, SLOW])
    reader.read()
    later = replace(SLOW, samples=1100, computing=9.0 + 0.5, others=0.6)
    rank_record.write_records(run, [replace(FAST, samples=1100, computing=9.0), later])
    assert [round(record.speed) for record in reader.read().ranks] == [100, 200]
    rank_record.write_records(run, [replace(FAST, samples=10, computing=0.1), later])  # started again
    assert reader.read().ranks[0].samples == 10


@pytest.mark.slow
def test_processes_tell_what_they_did(tmp_path: Path) -> None:
    """The records of all are complete at the end, however short the run is."""
    ranks_start.run_ranks([sys.executable, "-m", "tests.ranks_driver", str(tmp_path), "30", ""], 2)
    records = rank_record.read_records(tmp_path)
    trained = [json.loads((f / "trained.json").read_text()) for f in (tmp_path, tmp_path / "ranks" / "1")]
    assert [record.samples for record in records] == [sum(map(len, steps)) for steps in trained]
    for record in records:
        assert record.computing > 0, record
        assert record.others > 0, record
        assert record.threads == 1, record


def test_the_threads_are_those_of_the_training(tmp_path: Path) -> None:
    """A thread that asked torch before the plan was applied, as the signs of life may, keeps the number of then."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as signs:
        try:
            torch.set_num_threads(2)
            signs.submit(torch.get_num_threads).result()
            run = tiny.assemble_run(tmp_path, tiny.job())
            torch.set_num_threads(1)
            assert signs.submit(RankSampler(run).measure).result().threads == 1
        finally:
            torch.set_num_threads(before)
