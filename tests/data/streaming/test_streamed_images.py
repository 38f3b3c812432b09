"""Images streamed from tar and Parquet shards: the same samples as in memory, in the streamed order."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.errors import DataError, DrivetrainError, SpecError
from tests import tiny
from tests.data.streaming import shards
from tests.messages import begins_with, says


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/shards"


def read_error(path: Path, train: object, **keys: str) -> str:
    with pytest.raises(DrivetrainError) as error:
        load(shards.job(path, train, **keys))  # type: ignore[arg-type]
    assert "  possible: " in str(error.value)
    assert "  do: " in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_the_same_samples_as_in_memory(tmp_path: Path, suffix: str) -> None:
    shards.write_shards(tmp_path / "s", suffix)
    dataset = load(shards.job(tmp_path, "s"))
    assert dataset.heads[""].classes == ("bright", "dark")
    assert len(dataset.train) + len(dataset.validation) == 117
    assert dataset.preprocessing["channels"] == 3
    for split in (dataset.train, dataset.validation):
        ids = np.arange(len(split), dtype=np.int64)
        pixels = split.gather(ids)[0]
        assert pixels.shape == (len(ids), 3, 8, 8)
        bright = pixels.float().mean((1, 2, 3)) > 127
        assert torch.equal(bright, split.targets[""] == 0)
    assert dataset.train.title(0).endswith(f"{suffix} sample 1")
    assert dataset.shards["data.train"].keys() == {f"{n:04}{suffix}" for n in range(12)}


def test_tar_and_parquet_give_the_same_batches(tmp_path: Path) -> None:
    batch_lists = []
    for suffix in (".tar", ".parquet"):
        shards.write_shards(tmp_path / suffix[1:], suffix)
        data = load(shards.job(tmp_path / "j", tmp_path / suffix[1:]))
        batches = Batches(data.train, 12, 0, data.order)
        batch_lists.append(
            [(batch.ids.tolist(), batch.inputs[0]) for epoch in range(2) for batch in batches.epoch(epoch)]
        )
    assert len(batch_lists[0]) == len(batch_lists[1]) > 0
    for one, other in zip(*batch_lists, strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches(tmp_path: Path, suffix: str, workers: int) -> None:
    shards.write_shards(tmp_path / "s", suffix)
    data = load(shards.job(tmp_path, "s"))
    alone, several = Batches(data.train, 12, 0, data.order), Batches(data.train, 12, 0, data.order)
    several.workers = workers
    for one, other in zip(alone.epoch(1), several.epoch(1), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert torch.equal(one.inputs[0], other.inputs[0])
    # From the middle of an epoch, as after a kill.
    remaining_ids = [batch.ids.tolist() for batch in alone.epoch(1)][3:]
    assert [batch.ids.tolist() for batch in several.epoch(1, 3)] == remaining_ids


def test_whole_shards_are_held_out(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s")
    dataset = load(shards.job(tmp_path, "s", data="validation: 0.2"))
    names = [
        {split.title(n).partition(" ")[0] for n in range(len(split))} for split in (dataset.train, dataset.validation)
    ]
    assert not names[0] & names[1]
    assert len(names[1]) == 3  # 20% of 117 samples are more than two shards of ten


def test_own_shards_for_validation(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s")
    shards.write_tar(tmp_path / "held.tar", range(500, 506))
    dataset = load(shards.job(tmp_path, "s", data="validation: held.tar"))
    assert (len(dataset.train), len(dataset.validation)) == (117, 6)
    assert dataset.shards.keys() == {"data.train", "data.validation"}


def test_labels_in_json_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for number in range(4):
        shards.write_tar(tmp_path / f"s/{number}.tar", range(number * 10, number * 10 + 10), as_json=True)
    assert load(shards.job(tmp_path, "s")).heads[""].classes == ("bright", "dark")
    text = (tmp_path / "t.yaml").read_text().replace("image-classification", "image-regression")
    (tmp_path / "t.yaml").write_text(text.replace("image_size: 8", "image_size: 8, label_column: n"))
    from drivetrain.job_spec import load_job as job_spec

    dataset = load(job_spec.load(tmp_path / "t.yaml"))
    assert dataset.heads[""].columns == ("n",)


def test_it_trains(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s", ".parquet")
    run = tiny.assemble_plain_run(shards.job(tmp_path, "s"), tmp_path / "run")
    losses = tiny.losses(run, 30)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_bad_row_is_left_out(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s")
    with tarfile.open(tmp_path / "s/0003.tar", "a") as file:
        shards.add_member(file, "a/lonely.png", shards.encode_png(1))
        shards.add_member(file, "a/empty.cls", b"dark")
    dataset = load(shards.job(tmp_path, "s"))
    assert len(dataset.train) + len(dataset.validation) == 117
    assert says(dataset.notes, "samples-used-skipped-3", 2, 119)
    assert "left out: 0003.tar sample 11: label is empty" in dataset.notes


def test_the_plan_says_what_does_not_apply(tmp_path: Path) -> None:
    from drivetrain.plan import plan

    shards.write_shards(tmp_path / "s")
    run_plan = plan.resolve(shards.job(tmp_path, "s"), tiny.machine(), None)
    assert run_plan.row("decode_cache").value is False
    assert "streamed" in run_plan.row("decode_cache").reason


def test_notes_on_the_order(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s")
    notes = load(shards.job(tmp_path, "s")).notes
    assert begins_with(notes, "order-streams-shuffled-inside", 4, 2)
    assert not any(note.startswith("warning") for note in notes)
    (tmp_path / "sorted").mkdir()
    for number in range(12):
        shards.write_tar(tmp_path / f"sorted/{number:04}.tar", range(number % 2, 40, 2))
    notes = load(shards.job(tmp_path, "sorted", data="validation: 0.3", streams=12, window=1)).notes
    assert says(notes, "windows-hold-single-class")


def test_what_cannot_be_streamed(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "one", shards=1)
    assert "whole shards" in read_error(tmp_path, "one")
    (tmp_path / "none").mkdir()
    assert "no shards in" in read_error(tmp_path, "none")
    shards.write_shards(tmp_path / "both")
    shards.write_table(tmp_path / "both/x.parquet", range(10))
    assert ".parquet and .tar files" in read_error(tmp_path, "both")
    shards.write_shards(tmp_path / "cut")
    content = (tmp_path / "cut/0002.tar").read_bytes()
    for end in (100, 512, 600, 5120, 9216):  # inside and between headers, members and samples
        (tmp_path / "cut/0002.tar").write_bytes(content[:end])
        assert says(read_error(tmp_path, "cut"), "tar-cannot-be-read", "0002")
    shards.write_shards(tmp_path / "p", ".parquet")
    (tmp_path / "p/0002.parquet").write_bytes(b"PAR1 no")
    assert says(read_error(tmp_path, "p"), "parquet-cannot-be-read", "0002")
    shards.write_shards(tmp_path / "q", ".parquet")
    assert 'no column "kind"' in read_error(tmp_path, "q", data="label_column: kind")
    (tmp_path / "q/0003.parquet").write_bytes(b"")
    assert "0003.parquet of" in read_error(tmp_path, "q")


def test_an_image_that_cannot_be_decoded_names_its_shard(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s")
    with tarfile.open(tmp_path / "s/0003.tar", "a") as file:
        shards.add_member(file, "a/x.png", b"no image")
        shards.add_member(file, "a/x.cls", b"dark")
    assert "0003.tar sample 11: " in read_error(tmp_path, "s")


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_a_shard_that_changes_in_the_run(tmp_path: Path, cache: Path, suffix: str) -> None:
    shards.write_shards(tmp_path / "s", suffix)
    data = load(shards.job(tmp_path, "s"))
    name = data.train.title(0).partition(" ")[0]
    os.utime(tmp_path / "s" / name, (1, 1))
    for file in cache.glob("*.rows"):  # the sample for mean and deviation may have brought it there
        file.unlink()
    with pytest.raises(DataError, match=f"shard .*{name} has changed since it was indexed") as error:
        data.train.gather(np.arange(3))
    assert error.value.exit_code == 3


def test_a_cache_that_is_too_small(tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s", ".parquet", side=40)
    with pytest.raises(SpecError) as error:
        load(shards.job(tmp_path, "s", stream="cache: 200k"))
    assert "data.stream.cache: is 195.3 KiB" in str(error.value) or "data.stream.cache: is 200" in str(error.value)
    assert says(str(error.value), "streams-windows-shards-need", 4, 2)


@pytest.mark.parametrize("key", ["fold: 1/5", "groups: patient"])
def test_keys_that_do_not_go_together(tmp_path: Path, key: str) -> None:
    shards.write_shards(tmp_path / "s")
    with pytest.raises(SpecError, match=r"data\.stream is set"):
        shards.job(tmp_path, "s", data=key)
