"""Paths of a spec in a store and on the web, which are read whole: the same data as local files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.cli.main import main
from drivetrain.data.load_data import load as load_data
from drivetrain.errors import DataError, DrivetrainError, SpecError, StorageError
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.spec_source import fetch
from drivetrain.job_spec.yaml_file import dump
from tests.faults import small_job
from tests.messages import saying, says
from tests.object_store import FaultyStore
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


@pytest.mark.parametrize("where", ["s3", "web"])
def test_a_table_elsewhere_is_the_same_table(tmp_path: Path, proxy: FaultyStore, where: str) -> None:
    local_table = write_table(tmp_path / "here.csv")
    with WebServer(tmp_path) as address:
        open_store("data").put("here.csv", local_table.read_bytes())
        text = "s3://bucket/data/here.csv" if where == "s3" else f"{address}/here.csv"
        job = load(write_spec(tmp_path, TABLE, text), locate=fetch)
    assert load_content(job) == load_content(load(write_spec(tmp_path, TABLE, str(local_table))))
    assert any(note.startswith(f"data.train: {text}, fetched at 20") for note in job.notes)


def test_a_folder_with_splits(tmp_path: Path, proxy: FaultyStore) -> None:
    folder = write_photos(tmp_path / "photos")
    put_folder("photos", folder)
    path = write_spec(tmp_path, IMAGES, "s3://bucket/photos")
    job = load(path, locate=fetch)
    assert load_content(job) == load_content(load(write_spec(tmp_path / "l", IMAGES, str(folder))))
    # A folder that has changed is downloaded whole, and what is gone is not read.
    open_store("photos").delete(["train/dark/0.png"])
    open_store("photos").put("train/dark/9.png", (folder / "val/dark/1.png").read_bytes())
    proxy.requests.clear()
    assert len(load_data(load(path, locate=fetch)).train) == 12
    got = [name for method, name in proxy.requests if method == "GET" and name.endswith(".png")]
    assert "/bucket/photos/train/dark/9.png" in got
    assert "/bucket/photos/train/dark/0.png" not in got
    assert load_data(job).train.title(6).endswith("dark/0.png"), "a job that has begun keeps its version"


def test_a_part_of_a_folder_is_read_from_its_copy(tmp_path: Path, proxy: FaultyStore) -> None:
    """The spec of a run names the splits that its folder had: `evaluate` reads that spec."""
    put_folder("parts", write_photos(tmp_path / "photos"))
    job = load(write_spec(tmp_path, IMAGES, "s3://bucket/parts"), locate=fetch)
    stored_spec = write_spec(tmp_path / "run", IMAGES, "s3://bucket/parts")
    stored_spec.write_text(dump(job.dump()))
    proxy.requests.clear()
    reloaded = load(stored_spec, locate=fetch)
    assert reloaded.data.train == "s3://bucket/parts/train"
    assert load_content(reloaded) == load_content(job)
    assert not [name for method, name in proxy.requests if method == "GET" and name.endswith(".png")]
    assert load_content(load(stored_spec)) == load_content(job)


@pytest.mark.parametrize("name", ["labels.csv", "train-00000-of-00002.parquet"])
def test_a_file_that_needs_others_is_refused(tmp_path: Path, proxy: FaultyStore, name: str) -> None:
    open_store("alone").put(name, b"x")
    with pytest.raises(DataError, match=r"(?s)data\.train: .*name it: s3://bucket/alone"):
        load(write_spec(tmp_path, IMAGES, f"s3://bucket/alone/{name}"), locate=fetch)


def test_tar_files_are_not_downloaded_in_vain(tmp_path: Path, proxy: FaultyStore) -> None:
    open_store("tars").put("0001.tar", bytes(1000))
    proxy.requests.clear()
    with pytest.raises(DataError, check=saying("tar-files-tar", "data.train", "s3://bucket/tars", "0001")) as caught:
        load(write_spec(tmp_path, IMAGES, "s3://bucket/tars"), locate=fetch)
    assert "jobs/streamed.yaml" in caught.value.action
    assert not [path for method, path in proxy.requests if method == "GET" and path.endswith(".tar")]


@pytest.mark.parametrize(
    ("train", "error", "said"),
    [
        ("s3://bucket/nothing/t.csv", DataError, "s3://bucket/nothing/t.csv does not exist"),
        ("s3://nowhere/t.csv", StorageError, "there is no bucket nowhere"),
        ("s3:/bucket/t.csv", SpecError, "not an address of a store"),
        ("s3://user:secret@bucket/t.csv", SpecError, "user or password"),
        ("https://127.0.0.1:9/t.csv", StorageError, "does not answer"),
    ],
)
def test_what_cannot_be_fetched_names_the_key(
    tmp_path: Path, train: str, error: type[DrivetrainError], said: str
) -> None:
    with pytest.raises(error, match=rf"(?s)t\.yaml:4:8: data\.train: .*{said}") as caught:
        load(write_spec(tmp_path, TABLE, train), locate=fetch)
    assert "secret" not in str(caught.value)
    assert caught.value.action or caught.value.problems  # type: ignore[attr-defined]


def test_validate_asks_no_store(tmp_path: Path, proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    open_store("v").put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    path = write_spec(tmp_path, TABLE, "s3://bucket/v/t.csv")
    proxy.requests.clear()
    assert main(["validate", str(path)]) == 0
    assert not proxy.requests
    assert says(capsys.readouterr().out, "copy-drivetrain-fetch")
    assert main(["fetch", str(path)]) == 0
    assert "s3://bucket/v/t.csv: 1 file" in capsys.readouterr().out
    assert main(["validate", str(path)]) == 0
    assert "checked 72 training samples" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_training_from_a_store_has_the_bits_of_a_local_one(tmp_path: Path, proxy: FaultyStore) -> None:
    """Data on the web or in a bucket, a network that starts from the weights of a run in a bucket."""
    store = open_store("jobs")
    store.put("t.csv", write_table(tmp_path / "t.csv").read_bytes())
    store.put("held.csv", write_table(tmp_path / "held.csv", seed=2, rows=40).read_bytes())
    weights = []
    for name, address in (("here", str(tmp_path)), ("away", "s3://bucket/jobs")):
        folder = tmp_path / name
        validation_key = f', validation: "{address}/held.csv"'
        job = write_spec(folder, TABLE, f"{address}/t.csv", validation_key)
        small_job.finish(job)
        run = folder / "runs/t-001"
        if name == "here":
            put_folder("jobs/first", run)
        start = str(tmp_path / "here/runs/t-001") if name == "here" else "s3://bucket/jobs/first"
        second = folder / "second.yaml"
        second.write_text(job.read_text().replace("{name: mlp}", f'{{from: "{start}"}}').replace("name: t", "name: u"))
        small_job.finish(second)
        weights.append(
            [(folder / f"runs/{run_name}-001/model/model.safetensors").read_bytes() for run_name in ("t", "u")]
        )
    assert weights[0] == weights[1]
    names = {path.name for path in (tmp_path / "away").rglob("*")}
    assert names.isdisjoint({"t.csv", "held.csv"})
    assert not [path for _, path in proxy.requests if "first/checkpoints" in path and "GET" in _]
