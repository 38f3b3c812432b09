"""Paths of a spec in a store and on the web, which are read whole: the same data as local files, fetched once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runtime.cli.main import main
from runtime.data import load_tested
from runtime.data.load import load as load_data
from runtime.errors import DataError, DrivetrainError, SpecError, StorageError
from runtime.job import Job
from runtime.job_spec.load import load
from runtime.job_spec.spec_source import SpecSource, fetched
from runtime.job_spec.yaml_file import dump
from runtime.storage import stored_copy
from runtime.storage.object_store import ObjectStore, Patience, StoredObject
from runtime.storage.remote_address import parse
from runtime.storage.store_errors import RemoteError
from tests.faults import trained
from tests.object_store import Fault, FaultyStore
from tests.paths import ROOT
from tests.supervisor.remote_copy.fake_run import faulty_store, opened

TABLE = """
name: t
task: tabular-classification
data: {{train: "{train}", target: y{more}}}
model: {{name: mlp}}
train: {{epochs: 2, batch_size: 16}}
"""
IMAGES = """
name: p
task: image-classification
data: {{train: "{train}", image_size: 8}}
model: {{name: small-cnn, width: 4}}
"""


@pytest.fixture(autouse=True)
def proxy(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(stored_copy.VERSIONS, "{}")
    for name in ("PATIENCE", "HASTE"):
        monkeypatch.setattr(stored_copy, name, Patience(retries=1.5, silence=1.0, connect=1.0))
    with faulty_store(s3) as found:
        yield found


def table(path: Path, seed: int = 0, rows: int = 80) -> Path:
    values = np.random.default_rng(seed).normal(size=(rows, 2))
    lines = [f"{a:.5f},{b:.5f},{'yes' if a > b else 'no'}" for a, b in values]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


def photos(folder: Path, count: int = 6) -> Path:
    for split in ("train", "val", "test"):
        for label in ("bright", "dark"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((8, 8, 3), 40 * (label == "bright") + number, np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")
    return folder


def put_folder(place: str, folder: Path) -> None:
    store = opened(place)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())


def spec(folder: Path, text: str, train: str, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "t.yaml"
    path.write_text(text.format(train=train, more=more))
    return path


def content(job: Job) -> list[object]:
    """What a training would see of its data."""
    data = load_data(job)
    load_tested.add(job, data)
    return [
        [[each.tolist() for each in split.gather(np.arange(len(split)))] for split in (data.train, data.validation)],
        {name: values.tolist() for name, values in data.train.targets.items()},
        data.heads,
        [data.test.split.gather(np.arange(len(data.test.split)))[0].tolist()] if data.test else [],
    ]


@pytest.mark.parametrize("where", ["s3", "web"])
def test_a_table_elsewhere_is_the_same_table(tmp_path: Path, proxy: FaultyStore, where: str) -> None:
    here = table(tmp_path / "here.csv")
    with web(tmp_path) as address:
        opened("data").put("here.csv", here.read_bytes())
        text = "s3://bucket/data/here.csv" if where == "s3" else f"{address}/here.csv"
        job = load(spec(tmp_path, TABLE, text), locate=fetched)
    assert content(job) == content(load(spec(tmp_path, TABLE, str(here))))
    assert any(note.startswith(f"data.train: {text}, fetched at 20") for note in job.notes)


def test_it_is_fetched_once_and_again_when_it_has_changed(
    tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    opened("once").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/once/t.csv")
    first = load(path, locate=fetched)
    assert "downloading" in capsys.readouterr().out
    proxy.seen.clear()
    assert content(load(path, locate=fetched)) == content(first)
    assert [method for method, _ in proxy.seen] == ["HEAD"]
    # The processes of a run read one version, whatever the store has meanwhile.
    opened("once").put("t.csv", table(tmp_path / "t.csv", seed=1).read_bytes())
    proxy.seen.clear()
    child = SpecSource(path, is_child=True).load()
    assert not proxy.seen
    assert content(child) == content(first)
    assert content(load(path, locate=fetched)) != content(first)
    assert content(load(path, locate=fetched)) == content(load(spec(tmp_path / "l", TABLE, str(tmp_path / "t.csv"))))


def test_a_folder_with_splits(tmp_path: Path, proxy: FaultyStore) -> None:
    folder = photos(tmp_path / "photos")
    put_folder("photos", folder)
    path = spec(tmp_path, IMAGES, "s3://bucket/photos")
    job = load(path, locate=fetched)
    assert content(job) == content(load(spec(tmp_path / "l", IMAGES, str(folder))))
    # What has not changed is not downloaded again, and what is gone is not read.
    opened("photos").delete(["train/dark/0.png"])
    opened("photos").put("train/dark/9.png", (folder / "val/dark/1.png").read_bytes())
    proxy.seen.clear()
    assert len(load_data(load(path, locate=fetched)).train) == 12
    got = [name for method, name in proxy.seen if method == "GET" and name.endswith(".png")]
    assert got == ["/bucket/photos/train/dark/9.png"]
    assert load_data(job).train.title(6).endswith("dark/0.png"), "a job that has begun keeps its version"


def test_a_download_that_is_killed_goes_on(tmp_path: Path, proxy: FaultyStore) -> None:
    put_folder("killed", photos(tmp_path / "photos"))
    path = spec(tmp_path, IMAGES, "s3://bucket/killed")
    proxy.fault = lambda number, method, name: Fault("gone") if name.endswith("val/dark/3.png") else None
    with pytest.raises(RemoteError):
        load(path, locate=fetched)
    proxy.fault = lambda number, method, name: None
    proxy.seen.clear()
    load(path, locate=fetched)
    got = {name for method, name in proxy.seen if method == "GET" and name.endswith(".png")}
    assert "/bucket/killed/val/dark/3.png" in got
    assert len(got) < 36


def test_a_store_that_is_away(tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    opened("away").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/away/t.csv")
    proxy.away = True
    with pytest.raises(StorageError, match=r"t\.yaml:4:8: data\.train: .*the store does not answer"):
        load(path, locate=fetched)
    proxy.away = False
    first = load(path, locate=fetched)
    proxy.away = True
    assert content(load(path, locate=fetched)) == content(first)
    assert "so the copy of 20" in capsys.readouterr().out


def test_a_copy_is_enough_where_the_network_is_closed(
    tmp_path: Path, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `drivetrain fetch` by a machine with a role: nothing says who asks."""
    opened("closed").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/closed/t.csv")
    first = content(load(path, locate=fetched))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert content(load(path, locate=fetched)) == first


def test_rights_are_not_hidden_by_a_copy(tmp_path: Path, proxy: FaultyStore) -> None:
    opened("denied").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/denied/t.csv")
    load(path, locate=fetched)
    proxy.fault = lambda number, method, name: Fault("denied")
    with pytest.raises(RemoteError, match="refuses it"):
        load(path, locate=fetched)


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, proxy: FaultyStore) -> None:
    opened("damaged").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/damaged/t.csv")
    first = content(load(path, locate=fetched))
    copy = next((tmp_path / "cache/fetched").rglob("t.csv"))
    copy.write_text("a,b,y\n")
    assert content(load(path, locate=fetched)) == first


def test_objects_that_stand_for_folders_are_no_files(tmp_path: Path, proxy: FaultyStore) -> None:
    """As the console of S3 writes them."""
    folder = photos(tmp_path / "photos")
    put_folder("marked", folder)
    for name in ("marked/", "marked/train/", "marked/train/dark/"):
        request = urllib.request.Request(f"{proxy.endpoint}/bucket/{name}", b"", method="PUT")
        urllib.request.urlopen(request).close()
    job = load(spec(tmp_path, IMAGES, "s3://bucket/marked"), locate=fetched)
    assert content(job) == content(load(spec(tmp_path / "l", IMAGES, str(folder))))


def test_a_part_of_a_folder_is_read_from_its_copy(tmp_path: Path, proxy: FaultyStore) -> None:
    """The spec of a run names the splits that its folder had: `evaluate` and `reproduce` read that spec."""
    put_folder("parts", photos(tmp_path / "photos"))
    job = load(spec(tmp_path, IMAGES, "s3://bucket/parts"), locate=fetched)
    stored = spec(tmp_path / "run", IMAGES, "s3://bucket/parts")
    stored.write_text(dump(job.dumped()))
    proxy.seen.clear()
    again = load(stored, locate=fetched)
    assert again.data.train == "s3://bucket/parts/train"
    assert content(again) == content(job)
    assert not [name for method, name in proxy.seen if method == "GET" and name.endswith(".png")]
    assert content(load(stored)) == content(job)


def test_what_a_job_reads_is_not_removed(tmp_path: Path, proxy: FaultyStore) -> None:
    """A version that another process reads stays; one that nobody reads goes; one that comes back is not fetched again."""
    first, second = table(tmp_path / "1.csv").read_bytes(), table(tmp_path / "2.csv", seed=1).read_bytes()
    path = spec(tmp_path, TABLE, "s3://bucket/held/t.csv")
    code = "import sys; from runtime.job_spec.spec_source import SpecSource; from pathlib import Path; SpecSource(Path(sys.argv[1])).load()"

    def other(hold: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", f"{code}; print('READY', flush=True); {hold}", str(path)]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    opened("held").put("t.csv", first)
    reader = other("input()")
    assert reader.stdout is not None
    while reader.stdout.readline() != "READY\n":
        assert reader.poll() is None
    opened("held").put("t.csv", second)
    other().communicate()
    copies = {each.read_bytes() for each in (tmp_path / "cache/fetched").rglob("t.csv")}
    assert copies == {first, second}
    opened("held").put("t.csv", first)
    proxy.seen.clear()
    other().communicate()
    assert not [name for method, name in proxy.seen if method == "GET" and name.endswith("t.csv")]
    reader.communicate("\n")
    opened("held").put("t.csv", second)
    other().communicate()
    assert [each.read_bytes() for each in (tmp_path / "cache/fetched").rglob("t.csv")] == [second]


def test_a_stop_does_not_wait_for_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces come without an end; the first error ends all downloads."""
    store = opened("large")
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
        stored_copy.fetch(parse("s3://bucket/large"), tmp_path / "c", print)
    assert not [path for path in (tmp_path / "c").rglob("*.bin") if not path.name.startswith(".tmp-")]


def test_the_record_of_a_folder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each file: 20,000 took eleven minutes."""
    place, part = tmp_path / "place", tmp_path / "place/v.part"
    part.mkdir(parents=True)
    (tmp_path / "place/old").mkdir()
    files = [StoredObject(f"photos/{number}.png", 1, "tag") for number in range(50)]
    (place / "copy.json").write_text(
        json.dumps({"version": "old", "name": "photos", "files": [asdict(each) for each in files]})
    )
    read, count = stored_copy.read_json, []
    monkeypatch.setattr(stored_copy, "read_json", lambda path: count.append(path) or read(path))
    stored_copy._take_over(files, place, part)
    assert len(count) == 1


def test_a_web_address_as_a_browser_gives_it(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    here = table(tmp_path / "a folder/my file.csv")
    with web(tmp_path) as address:
        job = load(spec(tmp_path, TABLE, f"{address}/a%20folder/my%20file.csv"), locate=fetched)
    assert content(job) == content(load(spec(tmp_path, TABLE, str(here))))


@pytest.mark.parametrize("name", ["labels.csv", "train-00000-of-00002.parquet"])
def test_a_file_that_needs_others_is_refused(tmp_path: Path, proxy: FaultyStore, name: str) -> None:
    opened("alone").put(name, b"x")
    with pytest.raises(DataError, match=r"(?s)data\.train: .*name it: s3://bucket/alone"):
        load(spec(tmp_path, IMAGES, f"s3://bucket/alone/{name}"), locate=fetched)


def test_tar_shards_are_not_downloaded_in_vain(tmp_path: Path, proxy: FaultyStore) -> None:
    opened("tars").put("0001.tar", bytes(1000))
    proxy.seen.clear()
    with pytest.raises(DataError, match=r"data\.train: s3://bucket/tars has tar shards, such as 0001\.tar") as found:
        load(spec(tmp_path, IMAGES, "s3://bucket/tars"), locate=fetched)
    assert found.value.action == "add `stream: true` to data"
    assert not [path for method, path in proxy.seen if method == "GET" and path.endswith(".tar")]


@pytest.mark.parametrize(
    ("train", "error", "said"),
    [
        ("s3://bucket/nothing/t.csv", DataError, "nothing is there"),
        ("s3://nowhere/t.csv", StorageError, "there is no bucket nowhere"),
        ("s3:/bucket/t.csv", SpecError, "no address of a store"),
        ("s3://user:secret@bucket/t.csv", SpecError, "user or password"),
        ("https://127.0.0.1:9/t.csv", StorageError, "does not answer"),
    ],
)
def test_what_cannot_be_fetched_names_the_key(
    tmp_path: Path, train: str, error: type[DrivetrainError], said: str
) -> None:
    with pytest.raises(error, match=rf"(?s)t\.yaml:4:8: data\.train: .*{said}") as found:
        load(spec(tmp_path, TABLE, train), locate=fetched)
    assert "secret" not in str(found.value)
    assert found.value.action or found.value.problems  # type: ignore[attr-defined]


def test_validate_asks_no_store(tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    opened("v").put("t.csv", table(tmp_path / "t.csv").read_bytes())
    path = spec(tmp_path, TABLE, "s3://bucket/v/t.csv")
    proxy.seen.clear()
    assert main(["validate", str(path)]) == 0
    assert not proxy.seen
    assert "has no copy here; `drivetrain fetch" in capsys.readouterr().out
    assert main(["validate", "--remote", str(path)]) == 0
    assert "data.train: s3://bucket/v/t.csv: 1 file" in capsys.readouterr().out
    assert main(["fetch", str(path)]) == 0
    assert "s3://bucket/v/t.csv: 1 file" in capsys.readouterr().out
    assert main(["validate", str(path)]) == 0
    assert "checked 80 rows of s3://bucket/v/t.csv" in capsys.readouterr().out


def test_a_training_from_a_store_has_the_bits_of_a_local_one(tmp_path: Path, proxy: FaultyStore) -> None:
    """Data on the web or in a bucket, a network that starts from the weights of a run in a bucket."""
    store = opened("jobs")
    store.put("t.csv", table(tmp_path / "t.csv").read_bytes())
    store.put("held.csv", table(tmp_path / "held.csv", seed=2, rows=40).read_bytes())
    found = []
    for name, place in (("here", str(tmp_path)), ("away", "s3://bucket/jobs")):
        folder = tmp_path / name
        more = f', validation: "{place}/held.csv"'
        job = spec(folder, TABLE, f"{place}/t.csv", more)
        trained.finish(job)
        run = folder / "runs/t-001"
        if name == "here":
            put_folder("jobs/first", run)
        start = str(tmp_path / "here/runs/t-001") if name == "here" else "s3://bucket/jobs/first"
        second = folder / "second.yaml"
        second.write_text(job.read_text().replace("{name: mlp}", f'{{from: "{start}"}}').replace("name: t", "name: u"))
        trained.finish(second)
        found.append([(folder / f"runs/{each}-001/model/model.safetensors").read_bytes() for each in ("t", "u")])
    assert found[0] == found[1]
    names = {path.name for path in (tmp_path / "away").rglob("*")}
    assert names.isdisjoint({"t.csv", "held.csv"})
    assert not [path for _, path in proxy.seen if "first/checkpoints" in path and "GET" in _]


class web:
    """A web server with the files of a folder."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Quiet, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass
