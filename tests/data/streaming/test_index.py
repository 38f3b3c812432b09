"""The first pass over Parquet shards in a store reads labels alone, and finds the same as a pass over whole shards."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from drivetrain.data.images.image_shards import ImageRows
from drivetrain.data.load_data import load
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import open_stream, stores
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.shard import TAIL_BYTES, RangedFile
from drivetrain.errors import DataError, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse
from tests.data.streaming import shards
from tests.messages import saying, says
from tests.object_store import Fault, FaultyStore, moto, open_proxy

SHARDS, ROWS = 4, 120


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto() as address:
        yield address


@pytest.fixture(autouse=True)
def proxy(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyStore]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "PATIENCE", Patience(retries=2.0, silence=1.0, connect=1.0))
    with open_proxy(server) as store:
        for name, value in store.variables().items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture(scope="module")
def local_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of about 1.4 MB."""
    return shards.write_shards(tmp_path_factory.mktemp("s"), ".parquet", SHARDS, ROWS, side=64)


def upload(folder: Path, name: str) -> str:
    store = ObjectStore(parse(f"s3://bucket/{name}"))
    for file in sorted(folder.iterdir()):
        store.put(file.name, file.read_bytes())
    return f"s3://bucket/{name}"


def read_index(path: Path, train: object) -> Index:
    job = shards.job(path, train)
    assert job.data.stream
    store = open_stream.open_store(job, str(train), "data.train")
    rows = ImageRows("image", "data.train", ["label"])
    return indices.read(store, open_stream.open_cache(job.data.stream), rows.index_shard, ["x"], rows.glance)


def test_labels_without_the_images(tmp_path: Path, local_shards: Path, proxy: FaultyStore) -> None:
    address, size = upload(local_shards, "labels"), sum(file.stat().st_size for file in local_shards.iterdir())
    before = proxy.sent
    index = read_index(tmp_path / "a", address)
    fetched = proxy.sent - before
    assert fetched < size / 10
    assert (index.indexed_shards, index.ranged_shards) == (SHARDS, SHARDS)
    assert 0 < index.ranged_bytes <= fetched
    # What is known is not read again, and is what a pass over the files gives.
    reread_index, before = read_index(tmp_path / "a", address), proxy.sent
    assert (reread_index.indexed_shards, reread_index.ranged_shards, reread_index.ranged_bytes) == (0, 0, 0)
    assert index.digest() == reread_index.digest() == read_index(tmp_path / "b", local_shards).digest()
    assert index.bytes.tolist() == read_index(tmp_path / "b", local_shards).bytes.tolist()


def test_the_log_says_so(tmp_path: Path, local_shards: Path) -> None:
    notes = "\n".join(load(shards.job(tmp_path, upload(local_shards, "log"), streams=1)).notes)
    assert says(notes, "shards-mib-read-index", 4, 5, 4, 4), notes


def test_images_without_statistics_are_looked_at(tmp_path: Path, local_shards: Path, proxy: FaultyStore) -> None:
    """Only the images themselves say which rows have none, so all of a shard is fetched."""
    for file in local_shards.iterdir():
        (tmp_path / "s").mkdir(exist_ok=True)
        parquet.write_table(parquet.read_table(file), tmp_path / "s" / file.name, write_statistics=False)
    index = read_index(tmp_path / "a", upload(tmp_path / "s", "plain"))
    assert (index.indexed_shards, index.ranged_shards) == (SHARDS, 0)
    assert index.digest() == read_index(tmp_path / "b", tmp_path / "s").digest()


def test_many_small_row_groups_do_not_pay(tmp_path: Path, local_shards: Path, proxy: FaultyStore) -> None:
    """A request for each of them would take longer than the shard."""
    for file in local_shards.iterdir():
        (tmp_path / "s").mkdir(exist_ok=True)
        parquet.write_table(parquet.read_table(file), tmp_path / "s" / file.name, row_group_size=4)
    before = len(proxy.requests)
    index = read_index(tmp_path / "a", upload(tmp_path / "s", "small"))
    assert (index.indexed_shards, index.ranged_shards) == (SHARDS, 0)
    assert sum(method == "GET" for method, _ in proxy.requests[before:]) < 20


def test_a_shard_that_changes_while_it_is_read(tmp_path: Path, local_shards: Path, proxy: FaultyStore) -> None:
    address, count = upload(local_shards, "changes"), [0]

    def change(number: int, method: str, path: str) -> Fault | None:
        if method == "GET" and "0002.parquet" in path:
            count[0] += 1
            if count[0] == 1:
                proxy.fault = lambda number, method, path: None
                ObjectStore(parse(address)).put("0002.parquet", (local_shards / "0001.parquet").read_bytes())
        return None

    proxy.fault = change
    with pytest.raises(DataError, check=saying("changed-since-indexed", "changes/0002.parquet")):
        read_index(tmp_path, address)


@pytest.mark.parametrize(("fault", "expected_text"), [("denied", "403 AccessDenied"), ("slow down", "503 SlowDown")])
def test_a_store_that_fails_is_named(
    tmp_path: Path, local_shards: Path, proxy: FaultyStore, fault: str, expected_text: str
) -> None:
    address = upload(local_shards, fault.replace(" ", ""))
    proxy.fault = lambda number, method, path: Fault(fault) if "0003.parquet" in path and method == "GET" else None
    with pytest.raises(StorageError) as error:
        read_index(tmp_path, address)
    assert expected_text in str(error.value)
    assert "0003.parquet" in str(error.value)


def test_a_damaged_shard_is_named(tmp_path: Path, local_shards: Path) -> None:
    address = upload(local_shards, "damaged")
    content = (local_shards / "0001.parquet").read_bytes()
    ObjectStore(parse(address)).put("0001.parquet", content[:-50] + bytes(50))
    with pytest.raises(DataError, check=saying("parquet-cannot-be-read", "0001")):
        read_index(tmp_path, address)


@pytest.mark.parametrize("size", [1, TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1, 3 * TAIL_BYTES])
def test_reads_like_a_file(size: int) -> None:
    content = bytes(n * 7 % 251 for n in range(size))
    requests: list[tuple[int, int]] = []

    def get(start: int, count: int) -> bytes:
        requests.append((start, count))
        assert 0 <= start < start + count <= size
        return content[start : start + count]

    real, file = io.BytesIO(content), RangedFile(size, get)
    for position, count in ((0, 10), (size - 8, 8), (size - 1, 9), (size // 2, size), (0, size), (size, 4), (3, 0)):
        for reader in (real, file):
            reader.seek(max(0, position))
        assert file.read(count) == real.read(count)
        assert file.tell() == real.tell()
    before = len(requests)
    file.seek(-8, io.SEEK_END)
    assert file.read() == content[-8:]
    assert len(requests) == before, "the end is kept"
