"""Copies of what is in a store: fetched once, again where it has changed, kept while they are read, and stopped at once."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivetrain.errors import StorageError
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.spec_source import SpecSource, fetch
from drivetrain.storage import stored_copy
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.system import download_progress
from tests.messages import says
from tests.object_store import Fault, FaultyStore
from tests.remote_data import (
    IMAGES,
    TABLE,
    WebServer,
    load_content,
    open_faulty_store,
    put_folder,
    write_photos,
    write_spec,
    write_table,
)
from tests.supervisor.remote_copy.fake_run import open_store


@pytest.fixture(autouse=True)
def proxy(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with open_faulty_store(s3, tmp_path, monkeypatch) as store:
        yield store


def test_it_is_fetched_once_and_again_when_it_has_changed(
    tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store("once").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/once/t.csv")
    first = load(path, locate=fetch)
    assert "downloading" in capsys.readouterr().out
    proxy.requests.clear()
    assert load_content(load(path, locate=fetch)) == load_content(first)
    assert [method for method, _ in proxy.requests] == ["HEAD"]
    # The processes of a run read one version, whatever the store has meanwhile.
    open_store("once").put("t.csv", write_table(tmp_path / "t.csv", seed=1).read_bytes())
    proxy.requests.clear()
    child = SpecSource(path, is_child=True).load()
    assert not proxy.requests
    assert load_content(child) == load_content(first)
    with monkeypatch.context() as another_command:
        another_command.setenv(stored_copy.FOLDERS, "{}")
        assert load_content(load(path, locate=fetch)) != load_content(first)
    assert load_content(SpecSource(path, is_child=True).load()) == load_content(first)
    assert load_content(load(path, locate=fetch)) != load_content(first)
    assert load_content(load(path, locate=fetch)) == load_content(
        load(write_spec(tmp_path / "l", TABLE, str(tmp_path / "t.csv")))
    )


def test_a_download_that_fails_starts_again(tmp_path: Path, proxy: FaultyStore) -> None:
    folder = write_photos(tmp_path / "photos")
    put_folder("killed", folder)
    path = write_spec(tmp_path, IMAGES, "s3://bucket/killed")
    proxy.fault = lambda number, method, name: Fault("gone") if name.endswith("val/dark/3.png") else None
    with pytest.raises(RemoteError):
        load(path, locate=fetch)
    proxy.fault = lambda number, method, name: None
    job = load(path, locate=fetch)
    assert load_content(job) == load_content(load(write_spec(tmp_path / "l", IMAGES, str(folder))))
    assert len(list((tmp_path / "cache/fetched").glob("*-*"))) == 1


def test_a_store_that_is_away(tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    open_store("away").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/away/t.csv")
    proxy.drops_connections = True
    with pytest.raises(StorageError, match=r"t\.yaml:4:8: data\.train: .*the store does not answer"):
        load(path, locate=fetch)
    proxy.drops_connections = False
    first = load(path, locate=fetch)
    proxy.drops_connections = True
    assert load_content(load(path, locate=fetch)) == load_content(first)
    (folder,) = json.loads(os.environ[stored_copy.FOLDERS]).values()
    assert (tmp_path / "cache/fetched" / folder).is_dir(), "children read the same"
    assert says(capsys.readouterr().out, "so-copy-of", 20)


def test_a_copy_is_enough_where_the_network_is_closed(
    tmp_path: Path, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `drivetrain fetch` by a machine with a role: nothing says who asks."""
    open_store("closed").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/closed/t.csv")
    first = load_content(load(path, locate=fetch))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert load_content(load(path, locate=fetch)) == first


def test_rights_are_not_hidden_by_a_copy(tmp_path: Path, proxy: FaultyStore) -> None:
    open_store("denied").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/denied/t.csv")
    load(path, locate=fetch)
    proxy.fault = lambda number, method, name: Fault("denied")
    with pytest.raises(RemoteError, match="refuses the request"):
        load(path, locate=fetch)


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, proxy: FaultyStore) -> None:
    open_store("damaged").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/damaged/t.csv")
    first = load_content(load(path, locate=fetch))
    copy = next((tmp_path / "cache/fetched").rglob("t.csv"))
    copy.write_text("a,b,y\n")
    assert load_content(load(path, locate=fetch)) == first


def test_objects_that_stand_for_folders_are_no_files(tmp_path: Path, proxy: FaultyStore) -> None:
    """As the console of S3 writes them."""
    folder = write_photos(tmp_path / "photos")
    put_folder("marked", folder)
    for name in ("marked/", "marked/train/", "marked/train/dark/"):
        request = urllib.request.Request(f"{proxy.endpoint}/bucket/{name}", b"", method="PUT")
        urllib.request.urlopen(request).close()
    job = load(write_spec(tmp_path, IMAGES, "s3://bucket/marked"), locate=fetch)
    assert load_content(job) == load_content(load(write_spec(tmp_path / "l", IMAGES, str(folder))))


def test_what_a_job_reads_is_not_removed(tmp_path: Path, proxy: FaultyStore) -> None:
    """Earlier content stays until nothing has used it for a month; content that comes back is not fetched again."""
    contents = [write_table(tmp_path / f"{seed}.csv", seed=seed).read_bytes() for seed in range(3)]
    path = write_spec(tmp_path, TABLE, "s3://bucket/held/t.csv")
    for content in contents[:2]:
        open_store("held").put("t.csv", content)
        load(path, locate=fetch)
    open_store("held").put("t.csv", contents[0])
    proxy.requests.clear()
    load(path, locate=fetch)
    assert {method for method, _ in proxy.requests} == {"HEAD"}
    (unused,) = [copy for copy in (tmp_path / "cache/fetched").rglob("t.csv") if copy.read_bytes() == contents[1]]
    os.utime(unused.parents[1] / "copy.json", (0, 0))
    open_store("held").put("t.csv", contents[2])
    load(path, locate=fetch)
    copies = {copy.read_bytes() for copy in (tmp_path / "cache/fetched").rglob("t.csv")}
    assert copies == {contents[0], contents[2]}


def test_progress_is_told(
    tmp_path: Path, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download_progress, "INTERVAL_SECONDS", 0.0)
    put_folder("slow", write_photos(tmp_path / "photos"))
    load(write_spec(tmp_path, IMAGES, "s3://bucket/slow"), locate=fetch)
    assert re.search(r"s3://bucket/slow: \S+ \w+ of \S+ \w+, \S+ \w+/s, about 0 s left", capsys.readouterr().out)


def test_one_of_two_commands_downloads(tmp_path: Path, proxy: FaultyStore) -> None:
    put_folder("two", write_photos(tmp_path / "photos"))
    lines: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        fetches = [
            pool.submit(stored_copy.fetch, parse("s3://bucket/two"), tmp_path / "c", lines.append, lambda name: True)
            for _ in range(2)
        ]
    assert sorted(bool(future.result().downloaded) for future in fetches) == [False, True]


def test_a_stop_does_not_wait_for_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces come without an end; the first error ends all downloads."""
    store = open_store("large")
    for number in range(3):
        store.put(f"{number}.bin", b"1")

    def endless(self: ObjectStore, name: str) -> Iterator[bytes]:
        if name.endswith("2.bin"):
            time.sleep(0.2)
            raise KeyboardInterrupt
        while True:
            time.sleep(0.01)
            yield b"x"

    monkeypatch.setattr(ObjectStore, "stream", endless)
    with pytest.raises(KeyboardInterrupt):
        stored_copy.fetch(parse("s3://bucket/large"), tmp_path / "c", print, lambda name: True)
    assert not [path for path in (tmp_path / "c").rglob("*.bin") if not path.name.startswith(".tmp-")]


def test_a_web_address_as_a_browser_gives_it(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    file = write_table(tmp_path / "a folder/my file.csv")
    with WebServer(tmp_path) as address:
        job = load(write_spec(tmp_path, TABLE, f"{address}/a%20folder/my%20file.csv"), locate=fetch)
    assert load_content(job) == load_content(load(write_spec(tmp_path, TABLE, str(file))))
