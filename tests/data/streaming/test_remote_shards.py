"""Shards in an object store (a real S3 server behind a proxy that fails), through a cache that holds a part of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.data.streaming import open_stream, stores
from drivetrain.errors import DataError, DrivetrainError, SpecError, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse
from tests.data.streaming import shards, text_shards
from tests.data.streaming.reader_process import digest
from tests.messages import get_message, saying, says
from tests.object_store import SECRET, Fault, FaultyStore, moto, open_proxy
from tests.paths import IMPORTS, ROOT

SHARDS, ROWS = 80, 12
"""Shards of about 40 KiB."""
SHORT = Patience(retries=6.0, silence=1.0, connect=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto() as address:
        yield address


@pytest.fixture(autouse=True)
def proxy(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyStore]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "PATIENCE", SHORT)
    with open_proxy(server) as store:
        for name, value in store.variables().items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture(scope="module")
def folders(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images as tar and as Parquet, here and in the store."""
    folder_by_suffix = {}
    for suffix in (".tar", ".parquet"):
        folder_by_suffix[suffix] = shards.write_shards(
            tmp_path_factory.mktemp("s") / suffix[1:], suffix, SHARDS, ROWS, side=22
        )
        for file in folder_by_suffix[suffix].iterdir():
            put(server, f"{suffix[1:]}/{file.name}", file.read_bytes())
    return folder_by_suffix


@pytest.fixture(scope="module")
def text_folders(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same texts here and in the store, by the ending of their shards."""
    folder_by_ending = {}
    for ending in (".parquet", ".jsonl.gz", ".tar"):
        folder_by_ending[ending] = text_shards.write_shards(tmp_path_factory.mktemp("t"), 24, 60, ending)
        for file in folder_by_ending[ending].iterdir():
            put(server, f"texts-{ending.split('.')[1]}/{file.name}", file.read_bytes())
    return folder_by_ending


def put(server: str, name: str, content: bytes) -> None:
    kind = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"http://{server}/bucket/{name}", content, kind, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


def upload_copy(server: str, name: str, source: Path, count: int = 8) -> str:
    """A few of the shards at an address of their own, to spoil."""
    for file in sorted(source.iterdir())[:count]:
        put(server, f"{name}/{file.name}", file.read_bytes())
    return f"s3://bucket/{name}"


def count_fetches(proxy: FaultyStore) -> Counter[str]:
    """How often each shard was downloaded, or a part of it."""
    return Counter(path for method, path in proxy.requests if method == "GET" and "." in path.rpartition("/")[2])


def epochs(job: object, count: int = 2, workers: int = 0) -> list[str]:
    data = load(job)  # type: ignore[arg-type]
    batches = Batches(data.train, 12, 0, data.order)
    batches.workers = workers
    return [digest(batch) for epoch in range(count) for batch in batches.epoch(epoch)]


@contextmanager
def watch_sizes(folder: Path) -> Iterator[list[int]]:
    """The bytes in the cache, looked at all the time."""
    sizes, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            total = 0
            for file in folder.glob("*"):
                try:
                    total += 0 if file.suffix in (".index", ".part") else file.stat().st_size
                except FileNotFoundError:
                    continue
            sizes.append(total)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("suffix", [".tar", pytest.param(".parquet", marks=pytest.mark.nightly)])
def test_a_cache_of_a_tenth_of_the_data(
    tmp_path: Path, folders: dict[str, Path], proxy: FaultyStore, suffix: str
) -> None:
    size = sum(file.stat().st_size for file in folders[suffix].iterdir())
    limit = size // 10 // 1024 * 1024
    local = epochs(shards.job(tmp_path / "a", folders[suffix], streams=2, window=2))
    job = shards.job(
        tmp_path / "b", f"s3://bucket/{suffix[1:]}", streams=2, window=2, stream=f"cache: {limit // 1024}k"
    )
    data = load(job)
    proxy.requests.clear()
    batches = Batches(data.train, 12, 0, data.order)
    with watch_sizes(tmp_path / "cache/shards") as sizes:
        assert [digest(batch) for epoch in range(2) for batch in batches.epoch(epoch)] == local
    assert limit / 2 < max(sizes) <= limit
    shard_count = len({data.train.title(n).partition(" ")[0] for n in range(len(data.train))})
    assert sum(count_fetches(proxy).values()) <= 1.1 * 2 * shard_count


def run(path: Path, *numbers: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.data.streaming.reader_process", str(path), *map(str, numbers)]
    environment = {**os.environ, "PYTHONPATH": IMPORTS, **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_output(process: subprocess.Popen[str]) -> list[list[str]]:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_workers_processes_and_kills_give_the_same_batches(
    tmp_path: Path, folders: dict[str, Path], proxy: FaultyStore, count: int
) -> None:
    job = shards.job(tmp_path, "s3://bucket/tar", streams=3, window=1, stream="cache: 1m")
    uninterrupted = read_output(run(tmp_path / "t.yaml", 0, 1, 0, 1, 0))
    assert len(uninterrupted) == len(Batches(load(job).train, 12, 0, load(job).order).order(1))
    assert read_output(run(tmp_path / "t.yaml", 0, 1, 2, 1, 0)) == uninterrupted
    proxy.requests.clear()
    meeting_folder = tmp_path / f"together-{count}"
    meeting_folder.mkdir()
    processes = [run(tmp_path / "t.yaml", n, count, 0, 1, 0, TOGETHER=str(meeting_folder)) for n in range(count)]
    parts = [read_output(process) for process in processes]
    for lines in zip(uninterrupted, *parts, strict=True):
        assert lines[0][2] == ",".join(line[2] for line in lines[1:])
    # Together they have fetched each shard about once, besides the sample for mean and deviation.
    assert sum(count_fetches(proxy).values()) <= 1.1 * SHARDS + open_stream.MAX_SAMPLED_SHARDS
    killed_process = run(tmp_path / "t.yaml", 0, 1, 2, 1, 0, 0.05)
    assert killed_process.stdout is not None
    first_lines = [killed_process.stdout.readline().split() for _ in range(5)]
    killed_process.kill()
    killed_process.communicate()
    assert first_lines + read_output(run(tmp_path / "t.yaml", 0, 1, 1, 1, 5)) == uninterrupted


@pytest.mark.parametrize(
    ("workers", "ending"),
    [
        (0, ".parquet"),
        (2, ".jsonl.gz"),
        (2, ".tar"),
        pytest.param(2, ".parquet", marks=pytest.mark.nightly),
    ],
)
def test_texts_through_a_cache_of_a_part(
    tmp_path: Path, text_folders: dict[str, Path], proxy: FaultyStore, workers: int, ending: str
) -> None:
    """The cache holds tokens, which are made again when their shard comes again."""
    kilobytes = 256 if ending == ".tar" else 64  # a tar file has a kilobyte for each member
    stream = ", stream: {streams: 2, window: 2, cache: %s}"
    local = epochs(text_shards.job(tmp_path / "a", text_folders[ending], stream=stream % "10m"))
    job = text_shards.job(tmp_path / "b", f"s3://bucket/texts-{ending.split('.')[1]}", stream=stream % f"{kilobytes}k")
    limit = kilobytes * 1024
    with watch_sizes(tmp_path / "cache/shards") as sizes:
        sizes.clear()
        assert epochs(job, workers=workers) == local
    assert limit / 2 < max(sizes)
    # Those of the local job are in the same folder, and make room first.
    assert sizes[-1] <= limit
    text_requests = [path for path in count_fetches(proxy) if "/texts-" in path]
    assert len(text_requests) == 24


def test_a_cache_too_small_for_the_shards_of_a_batch_is_an_error(
    tmp_path: Path, text_folders: dict[str, Path], proxy: FaultyStore
) -> None:
    """A worker would wait for ever: all shards of its batch stay until it has read them."""
    job = text_shards.job(tmp_path, "s3://bucket/texts-tar", stream=", stream: {streams: 2, window: 2, cache: 160k}")
    with pytest.raises(StorageError) as refused:
        epochs(job, workers=2)
    assert refused.value.given.startswith("data.stream.cache is 160 KiB, and the ")
    assert says(refused.value.given, "shards-batch-take")
    assert "or set optimize.loader_workers: 0" in refused.value.action


def fail_first(count: int, fault: Fault, part: str = ".tar") -> Callable[[int, str, str], Fault | None]:
    remaining = [count]

    def decide(number: int, method: str, path: str) -> Fault | None:
        if method == "GET" and part in path and remaining[0] > 0:
            remaining[0] -= 1
            return fault
        return None

    return decide


@pytest.mark.parametrize(
    "fault", [Fault("slow down"), Fault("cut", 9000), Fault("silent"), Fault("gone"), Fault("cut", 0)], ids=str
)
def test_a_store_that_recovers(
    tmp_path: Path, server: str, folders: dict[str, Path], proxy: FaultyStore, fault: Fault
) -> None:
    address = upload_copy(server, f"r{abs(hash(str(fault)))}", folders[".tar"])
    local = shards.job(tmp_path / "a", folders[".tar"])
    proxy.fault = fail_first(2, fault)
    job = shards.job(tmp_path / "b", address)
    batch_digests = epochs(job, 1)
    assert len(set(batch_digests)) == len(batch_digests) > 3
    assert load(local).heads == load(job).heads


@pytest.mark.parametrize(
    ("fault", "kind", "expected_text"),
    [
        (Fault("slow down"), StorageError, "the store does not answer (503 SlowDown)"),
        (Fault("denied"), StorageError, "the store refuses it (403 AccessDenied)"),
        pytest.param(Fault("gone"), StorageError, "the store does not answer", marks=pytest.mark.nightly),
        pytest.param(Fault("silent"), StorageError, "the store does not answer", marks=pytest.mark.nightly),
    ],
    ids=["slow down", "denied", "gone", "silent"],
)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_a_store_that_does_not_recover(
    tmp_path: Path,
    server: str,
    folders: dict[str, Path],
    proxy: FaultyStore,
    fault: Fault,
    kind: type[DrivetrainError],
    expected_text: str,
    workers: int,
) -> None:
    address = upload_copy(server, f"n{fault.kind.replace(' ', '')}{workers}", folders[".parquet"])
    job = shards.job(tmp_path, address, stream="cache: 400k")
    data = load(job)
    for file in (tmp_path / "cache/shards").glob("*.rows"):
        file.unlink()
    proxy.fault = fail_first(10**6, fault, "0003.parquet")
    batches = Batches(data.train, 12, 0, data.order)
    batches.workers = workers
    with pytest.raises(kind) as error:
        list(batches.epoch(0))
    assert error.value.exit_code == 7
    assert f"{address}/0003.parquet" in str(error.value)
    assert expected_text in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_changed_shard_is_named(tmp_path: Path, server: str, folders: dict[str, Path], workers: int) -> None:
    address = upload_copy(server, f"changed{workers}", folders[".tar"])
    data = load(shards.job(tmp_path, address))
    for file in (tmp_path / "cache/shards").glob("*.rows"):
        file.unlink()
    content = (folders[".tar"] / "0003.tar").read_bytes()
    ObjectStore(parse(address)).put("0003.tar", content[:-1] + b"\x01")
    batches = Batches(data.train, 12, 0, data.order)
    batches.workers = workers
    with pytest.raises(DataError, match=rf"shard {address}/0003\.tar has changed since it was indexed") as error:
        list(batches.epoch(0))
    assert error.value.exit_code == 3


def test_training_goes_on_while_the_cache_lasts(
    tmp_path: Path, server: str, folders: dict[str, Path], proxy: FaultyStore
) -> None:
    address = upload_copy(server, "lasts", folders[".tar"])
    data = load(shards.job(tmp_path, address, stream="cache: 10m"))
    batches = Batches(data.train, 12, 0, data.order)
    first_epoch = [digest(batch) for batch in batches.epoch(0)]
    proxy.drops_connections = True
    start = time.monotonic()
    assert [digest(batch) for batch in batches.epoch(0)] == first_epoch
    assert time.monotonic() - start < SHORT.retries


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_what_is_fetched_is_counted(tmp_path: Path, folders: dict[str, Path], proxy: FaultyStore, workers: int) -> None:
    data = load(shards.job(tmp_path, "s3://bucket/tar", streams=2, stream="cache: 600k"))
    assert data.fetched is not None
    batches = Batches(data.train, 12, 0, data.order)
    batches.workers = workers
    request_count, before = len(proxy.requests), data.fetched.to_json()
    for epoch in range(2):
        assert sum(map(len, batches.epoch(epoch)))
    names = Counter(path.rpartition("/")[2] for method, path in proxy.requests[request_count:] if method == "GET")
    sizes = {file.name: file.stat().st_size for file in folders[".tar"].iterdir()}
    now = data.fetched.to_json()
    assert now["fetches"] - before["fetches"] == sum(names.values())
    assert now["bytes"] - before["bytes"] == sum(sizes[name] * count for name, count in names.items())
    assert now["again"] >= sum(names.values()) - len(names) > 0, "the cache holds a part of them"
    assert now["waited"] > 0


@pytest.mark.parametrize(
    ("train", "expected_text"),
    [
        ("s3://no bucket/x", "names no"),
        ("s3://user:word@bucket/x", "written with a user or password"),
        ("https://host/x", "cannot be listed"),
    ],
)
def test_addresses_that_cannot_be(tmp_path: Path, train: str, expected_text: str) -> None:
    with pytest.raises(SpecError) as error:
        shards.job(tmp_path, f"'{train}'")
    assert expected_text in str(error.value) or get_message("is-no-name-of-bucket") in str(error.value)
    assert "word" not in str(error.value).partition("user or password")[0]


def test_nothing_at_an_address(tmp_path: Path, server: str) -> None:
    with pytest.raises(DataError, check=saying("no-shards-in", "data.train", "s3://bucket/nothing")):
        load(shards.job(tmp_path, "s3://bucket/nothing"))
    with pytest.raises(StorageError, check=saying("there-is-no-bucket-other")):
        load(shards.job(tmp_path, "s3://other/nothing"))
    assert ObjectStore(parse("s3://bucket/nothing")).objects() == []
