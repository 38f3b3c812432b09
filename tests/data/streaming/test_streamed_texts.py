"""Texts streamed from Parquet shards: the same tokens as in memory, in the streamed order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from drivetrain.data.dataset import NO_LABEL, InputRecord
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.errors import DrivetrainError
from tests import tiny
from tests.data.streaming import text_shards
from tests.messages import saying, says


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/shards"


def read_error(path: Path, train: object, **keys: str) -> str:
    with pytest.raises(DrivetrainError) as error:
        load(text_shards.job(path, train, **keys))  # type: ignore[arg-type]
    assert "  possible: " in str(error.value)
    assert "  do: " in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("keys", [{}, {"text": "[title, text]"}, {"data": "max_length: 16, truncation: middle"}])
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".jsonl.gz", ".json.zst", ".tar"])
def test_the_same_tokens_and_classes_as_in_memory(tmp_path: Path, keys: dict[str, str], ending: str) -> None:
    """The same rows in one file, read whole, with the tokenizer of the streamed job."""
    text_shards.write_shards(tmp_path / "s", ending=ending)
    streamed = load(text_shards.job(tmp_path, "s", **keys))  # type: ignore[arg-type]
    assert (len(streamed.train), len(streamed.validation)) == (97, 20)
    parquet.write_table(text_shards.make_table(range(117)), tmp_path / "all.parquet")
    record = InputRecord(json.loads(json.dumps(streamed.preprocessing)), streamed.heads)
    resident = load(text_shards.job(tmp_path, "all.parquet", stream="", **keys), record)  # type: ignore[arg-type]
    assert streamed.preprocessing == resident.preprocessing
    # Where the rows of the resident parts stand in the file.
    positions = {
        int(row): (part, i) for part in (resident.train, resident.validation) for i, row in enumerate(part.rows)
    }
    for split in (streamed.train, streamed.validation):
        for index in range(len(split)):
            part, position = positions[int(split.rows[index])]  # type: ignore[attr-defined]
            for one, other in zip(split.gather(np.array([index])), part.gather(np.array([position])), strict=True):
                assert torch.equal(one, other)
            for name in ("label", "stars"):
                assert split.targets[name][index] == part.targets[name][position]
    ids = np.arange(7, dtype=np.int64)
    assert streamed.train.gather(ids)[0].shape[1] == max(int(x.sum()) for x in streamed.train.gather(ids)[-1])


def test_lengths_are_near_the_real_ones(tmp_path: Path) -> None:
    """They decide about memory and padding; the largest is never above max_length."""
    text_shards.write_shards(tmp_path / "s")
    data = load(text_shards.job(tmp_path, "s"))
    real = data.train.gather(np.arange(len(data.train), dtype=np.int64))[-1].sum(1).numpy()
    guessed = data.train.lengths  # type: ignore[attr-defined]
    assert abs(guessed.sum() / real.sum() - 1) < 0.1
    assert np.corrcoef(guessed, real)[0, 1] > 0.9
    assert guessed.max() <= data.preprocessing["max_length"]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches(tmp_path: Path, workers: int) -> None:
    text_shards.write_shards(tmp_path / "s")
    data = load(text_shards.job(tmp_path, "s"))
    alone, several = Batches(data.train, 12, 0, data.order), Batches(data.train, 12, 0, data.order)
    several.workers = workers
    for one, other in zip(alone.epoch(1), several.epoch(1), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert all(torch.equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))
    # From the middle of an epoch, as after a kill.
    remaining_ids = [batch.ids.tolist() for batch in alone.epoch(1)][3:]
    assert [batch.ids.tolist() for batch in several.epoch(1, 3)] == remaining_ids


def test_own_shards_for_validation(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s")
    text_shards.write_shards(tmp_path / "v", 2)
    data = load(text_shards.job(tmp_path, "s", data="validation: v"))
    assert (len(data.train), len(data.validation)) == (117, 17)
    assert data.shards.keys() == {"data.train", "data.validation"}
    assert data.validation.title(3).startswith("0000.parquet sample 4: ")
    assert (
        "cold" in data.validation.title(3) or "late" in data.validation.title(3) or "awful" in data.validation.title(3)
    )


def test_tokens_of_another_length_are_others(tmp_path: Path, cache: Path) -> None:
    """What is in the cache depends on tokenizer and length; a second job must not read those of the first."""
    text_shards.write_shards(tmp_path / "s")
    widths = []
    for length in (8, 24, 8):
        data = load(text_shards.job(tmp_path, "s", data=f"max_length: {length}"))
        widths.append(data.train.gather(np.arange(50, dtype=np.int64))[0].shape[1])
    assert widths == [8, 24, 8]


def test_rows_without_text_or_label_are_left_out(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s")
    broken = text_shards.make_table(range(200, 210)).to_pylist()
    broken[2]["text"], broken[5]["label"], broken[7]["stars"] = "  ", "", None
    broken[5]["stars"] = None
    parquet.write_table(pyarrow.Table.from_pylist(broken), tmp_path / "s/0012.parquet")
    data = load(text_shards.job(tmp_path, "s"))
    assert len(data.train) + len(data.validation) == 125
    notes = "\n".join(data.notes)
    assert "0012.parquet sample 3: text is empty" in notes
    assert says(notes, "parquet-sample-label-stars", "0012", 6)
    assert says(notes, "samples-used-skipped-3", 2, 127)
    # The other label of the eighth sample is learned.
    assert sum(int((part.targets["stars"] == NO_LABEL).sum()) for part in (data.train, data.validation)) == 1
    assert data.heads["stars"].partial
    assert not data.heads["label"].partial
    assert '"stars": 1 of ' in notes


def test_it_trains(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s")
    run = tiny.assemble_plain_run(text_shards.job(tmp_path, "s"), tmp_path / "run")
    losses = tiny.losses(run, 30)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_the_plan_says_what_does_not_apply(tmp_path: Path) -> None:
    from drivetrain.plan import plan

    text_shards.write_shards(tmp_path / "s")
    run_plan = plan.resolve(text_shards.job(tmp_path, "s"), tiny.machine(), None)
    for name in ("feature_cache", "gpu_resident_data"):
        assert run_plan.row(name).value is False, run_plan.row(name)


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"text": "txt"}, 'has no column "txt"'),
        ({"labels": "lable"}, 'has no column "lable"'),
        ({"text": "label", "labels": "text"}, "different values"),
        ({"data": "validation: nowhere"}, "does not exist"),
        ({"data": "groups: id"}, "groups"),
        ({"data": "fold: 1/5"}, "fold"),
    ],
)
def test_what_cannot_be_streamed(tmp_path: Path, change: dict[str, str], expected_text: str) -> None:
    text_shards.write_shards(tmp_path / "s")
    assert expected_text in read_error(tmp_path, "s", **change)


def test_numbers_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for number in range(2):
        table = pyarrow.table({"text": [1.5, 2.5], "label": ["a", "b"]})
        parquet.write_table(table, tmp_path / "s" / f"{number}.parquet")
    assert 'column "text" of shard' in read_error(tmp_path, "s", labels="label")


def test_a_csv_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nfine,good\n")
    assert "no shards in" in read_error(tmp_path, "a.csv", labels="label")


def test_text_that_is_not_utf_8_names_the_shard(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s")
    path = tmp_path / "s/0003.parquet"
    parquet.write_table(text_shards.make_table(range(30, 40)), path, compression="none", use_dictionary=False)
    assert b"note 31" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"note 31", b"note \xff1"))
    assert "0003.parquet" in read_error(tmp_path, "s", text="[title, text]")


def test_a_shard_that_changes_in_the_run(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s")
    data = load(text_shards.job(tmp_path, "s"))
    for number in range(12):
        parquet.write_table(text_shards.make_table(range(500, 510)), tmp_path / "s" / f"{number:04}.parquet")
    with pytest.raises(DrivetrainError, check=saying("changed-since-indexed-2")):
        data.train.gather(np.arange(3, dtype=np.int64))
