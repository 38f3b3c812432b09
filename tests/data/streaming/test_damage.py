"""Shards and copies of them that are not what they were: noticed by name, or fetched again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from drivetrain.data.images.image_shards import ImageRows
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import fetch
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.errors import DataError, DrivetrainError, StorageError
from tests.data.streaming import shards
from tests.data.streaming.written_shards import write_image_shards, write_images
from tests.messages import saying, says


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/shards"


def batches(data: object, workers: int = 0) -> list[torch.Tensor]:
    split = data.train  # type: ignore[attr-defined]
    return [batch.inputs[0] for batch in fetch(split, np.array_split(np.arange(len(split)), 4), workers=workers)]


def remove_row_files(cache: Path) -> None:
    for file in cache.glob("*.rows"):
        file.unlink()


def same_time(file: Path, change: Callable[[], object]) -> None:
    """Change a file, but neither its size nor its time."""
    before = file.stat()
    change()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_page_names_the_shard(tmp_path: Path, cache: Path, workers: int) -> None:
    shards.write_shards(tmp_path / "s", ".parquet", shards=14)
    file = tmp_path / "s/0005.parquet"
    group = parquet.read_metadata(file).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    start = next(column.data_page_offset for column in columns if column.path_in_schema == "image.bytes")
    data = load(shards.job(tmp_path, "s", streams=2, window=1))
    content = bytearray(file.read_bytes())
    content[start : start + 200] = bytes(byte ^ 0x55 for byte in content[start : start + 200])
    same_time(file, lambda: file.write_bytes(content))
    remove_row_files(cache)
    with pytest.raises(DrivetrainError) as error:
        batches(data, workers)
    assert says(str(error.value), "parquet-cannot-be-read", "0005")
    assert isinstance(error.value, DataError)
    # Although the error is kept, and with it all that was running.
    assert multiprocessing.active_children() == []


def test_any_failure_of_a_fetch_reaches_the_workers(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("out of order")

    shards.write_shards(tmp_path / "s", ".parquet", shards=6)
    data = load(shards.job(tmp_path, "s", streams=2, window=1))
    remove_row_files(cache)
    monkeypatch.setattr(ImageRows, "write", failing)
    with pytest.raises(StorageError, check=saying("parquet-read-cache-runtimeerror")):
        batches(data, 2)


@pytest.mark.parametrize("content", [b"", bytes(5000), b"cut"], ids=["empty", "zeros", "cut"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_copy_that_a_power_loss_has_damaged_is_made_again(
    tmp_path: Path, cache: Path, content: bytes, workers: int
) -> None:
    shards.write_shards(tmp_path / "s", ".parquet", shards=6)
    data = load(shards.job(tmp_path, "s", streams=2, window=1))
    right = batches(data)
    reader: ShardReader = data.train.images.reader  # type: ignore[attr-defined]
    for shard in reader.cached():
        path = reader.cache.path(reader.name(shard))
        is_cut = content == b"cut" and path.exists()
        path.write_bytes(path.read_bytes()[:-5] if is_cut else content)
    for one, other in zip(right, batches(data, workers), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_a_shard_with_the_size_and_time_of_another(tmp_path: Path, suffix: str) -> None:
    shards.write_shards(tmp_path / "s", suffix)
    names = sorted(shard_file.name for shard_file in (tmp_path / "s").iterdir())
    file, make = tmp_path / "s" / names[3], shards.write_tar if suffix == ".tar" else shards.write_table
    plain = {} if suffix == ".tar" else {"compression": "none", "use_dictionary": False}
    make(file, range(30, 40), **plain)
    before = load(shards.job(tmp_path, "s"))
    labels, recorded = before.train.targets[""], before.shards
    batches(before)
    same_time(file, lambda: make(file, [*range(31, 40), 30], **plain))  # as large, in another order
    after = load(shards.job(tmp_path, "s"))
    assert not torch.equal(after.train.targets[""], labels)
    assert after.shards == recorded  # a copy of the shards may go on with the run


def test_a_damaged_local_shard_is_noticed_by_its_hash(tmp_path: Path) -> None:
    write_image_shards(write_images(tmp_path / "i"), tmp_path / "s")
    load(shards.job(tmp_path, "s"))
    file = tmp_path / "s/000001.tar"
    content = bytearray(file.read_bytes())
    content[700] ^= 0xFF
    same_time(file, lambda: file.write_bytes(content))
    with pytest.raises(DataError, check=saying("tar-another-content-says", "000001", "index.json")):
        load(shards.job(tmp_path, "s"))


def test_changed_images_of_the_same_size_are_other_images(tmp_path: Path) -> None:
    source = write_images(tmp_path / "i")
    write_image_shards(source, tmp_path / "s")
    file = source / "dark/x.000.png"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, (1, 1))
    with pytest.raises(DataError, match="of other images"):
        write_image_shards(source, tmp_path / "s")
