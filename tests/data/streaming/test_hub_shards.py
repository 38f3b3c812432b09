"""Shards of a dataset on the Hugging Face hub, fetched one by one while a run trains on them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from drivetrain.data.images import image_shards
from drivetrain.data.images.image_targets import LabelForm
from drivetrain.data.load_data import add_test, load
from drivetrain.data.loader.batches import Batches
from drivetrain.data.streaming import open_stream
from drivetrain.errors import DrivetrainError
from drivetrain.job import Job
from drivetrain.job.images import ImageJob
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.pretrained import hub_connection
from tests.data.streaming import shards, text_shards
from tests.data.streaming.reader_process import digest
from tests.hub_double import COMMIT
from tests.hub_server import Fault, Hub, serve_hub

NAME, COUNT, ROWS = "casa/frases", 12, 10
README = """---
configs:
- config_name: default
  data_files: [{split: train, path: data/train-*}, {split: validation, path: data/validation-*}]
dataset_info:
  features:
  - {name: text, dtype: string}
  - name: stars
    dtype: {class_label: {names: {'0': none, '1': one, '2': two}}}
---
"""
JOB = """
name: t
task: text-classification
data: {{train: '{train}', text: text, labels: [label, stars], stream: {{streams: 3, window: 1{cache}}}}}
model: {{name: encoder, layers: 1, width: 16, heads: 2, vocabulary: 200}}
train: {{epochs: 2, batch_size: 12}}
"""


def content(first: int, count: int = ROWS) -> bytes:
    out = io.BytesIO()
    parquet.write_table(text_shards.make_table(range(first, first + count)), out)
    return out.getvalue()


FILES = {
    "README.md": README.encode(),
    **{f"data/train-{n:05}-of-{COUNT:05}.parquet": content(n * ROWS) for n in range(COUNT)},
    **{f"data/validation-{n:05}-of-00002.parquet": content(500 + n * ROWS) for n in range(2)},
}


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_connection, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub(Hub(dict(FILES), name=NAME, kind="datasets")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def make_job(folder: Path, train: str = f"hf://datasets/{NAME}", cache: str = "") -> Job:
    path = folder / "t.yaml"
    path.write_text(JOB.format(train=train, cache=cache and f", cache: {cache}"))
    return SpecSource(path).load()


def test_the_split_for_the_final_test_is_read_whole(hub: Hub, tmp_path: Path) -> None:
    test = "data/test-00000-of-00001.parquet"
    hub.files |= {
        test: content(900),
        "README.md": README.replace("]\n", ", {split: test, path: data/test-*}]\n", 1).encode(),
    }
    job = make_job(tmp_path)
    assert job.data.test == f"hf://datasets/{NAME}@{COMMIT}/{test}"
    assert set(hub.paths(".parquet")) == {f"/datasets/{NAME}/resolve/{COMMIT}/{test}"}
    data = load(job)
    add_test(job, data)
    assert data.test is not None
    assert len(data.test.split) == ROWS


def test_nothing_is_downloaded_before_it_is_needed(hub: Hub, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert hub.paths(".parquet") == []
    assert job.data.train == f"hf://datasets/{NAME}@{COMMIT}/data/train-00000-of-{COUNT:05}.parquet"
    assert job.data.validation == f"hf://datasets/{NAME}@{COMMIT}/data/validation-00000-of-00002.parquet"
    data = load(job)
    assert (len(data.train), len(data.validation)) == (COUNT * ROWS, 2 * ROWS)
    assert data.heads["stars"].classes == ("none", "one", "two"), "the names of the README"
    # Nothing of it is in the hub's own cache, whose size nobody bounds.
    assert not list((tmp_path / "home").rglob("*.parquet"))
    assert len(data.shards["data.train"]) == COUNT


def test_the_same_batches_as_from_this_machine(hub: Hub, tmp_path: Path) -> None:
    folder = text_shards.write_shards(tmp_path / "s", COUNT, ROWS)
    (folder / f"{COUNT - 1:04}.parquet").write_bytes(content((COUNT - 1) * ROWS))
    for number in range(2):
        path = tmp_path / "v" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(500 + number * ROWS))
    (tmp_path / "local").mkdir()
    stream = ", stream: {streams: 3, window: 1}"
    local = load(
        text_shards.job(tmp_path / "local", tmp_path / "s", stream=stream, data=f"validation: {tmp_path / 'v'}")
    )
    remote = load(make_job(tmp_path, cache="64k"))
    for epoch in range(2):
        local_batches, remote_batches = (
            Batches(data.train, 12, 0, data.order).epoch(epoch) for data in (local, remote)
        )
        assert [digest(batch) for batch in local_batches] == [digest(batch) for batch in remote_batches]


def test_a_resumed_run_asks_for_no_list_and_keeps_its_commit(hub: Hub, tmp_path: Path) -> None:
    load(make_job(tmp_path))
    hub.revisions["main"] = "89abcdef0123456789abcdef0123456789abcdef"
    hub.requests.clear()
    data = load(make_job(tmp_path))
    assert hub.paths("/api/") == []
    assert COMMIT in data.train.reader.index.shards[0].address  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fault", [Fault(cut=700, times=2), Fault(status=503, times=2), Fault(spoil=True, times=1)], ids=str
)
def test_a_hub_that_recovers(hub: Hub, tmp_path: Path, fault: Fault) -> None:
    fault.path = ".parquet"
    hub.faults.append(fault)
    data = load(make_job(tmp_path))
    assert len(data.train) == COUNT * ROWS


@pytest.mark.parametrize(
    ("fault", "expected_text"),
    [
        (Fault(status=404), "train-0000"),
        (Fault(status=401), "HF_TOKEN"),
        (Fault(spoil=True), "another hash"),
        (Fault(cut=0), "ends after"),
    ],
    ids=str,
)
def test_a_hub_that_does_not(hub: Hub, tmp_path: Path, fault: Fault, expected_text: str) -> None:
    fault.path = ".parquet"
    hub.faults.append(fault)
    with pytest.raises(DrivetrainError) as error:
        load(make_job(tmp_path))
    text = str(error.value)
    assert expected_text in text
    assert f"shard hf://datasets/{NAME}@{COMMIT}/data/" in text
    assert "  possible: " in text
    assert "  do: " in text
    assert not list((tmp_path / "cache/shards").glob("*.writing*"))


def test_a_folder_of_tar_shards(hub: Hub, tmp_path: Path) -> None:
    shards.write_shards(tmp_path / "s", shards=4)
    hub.files.update({f"tars/{file.name}": file.read_bytes() for file in (tmp_path / "s").iterdir()})
    train = f"hf://datasets/{NAME}/tars"
    data = load(
        SpecSource(
            _write_spec(
                tmp_path,
                shards.JOB.format(train=f"'{train}'", streams=2, window=1, stream="", data="", epochs=1, train_keys=""),
            )
        ).load()
    )
    local = load(shards.job(tmp_path / "l", tmp_path / "s", streams=2, window=1))
    ids = np.arange(8, dtype=np.int64)
    assert torch.equal(data.train.gather(ids)[0], local.train.gather(ids)[0])


def _write_spec(folder: Path, text: str) -> Path:
    path = folder / "tar.yaml"
    path.write_text(text)
    return path


def test_validate_without_a_network(hub: Hub, tmp_path: Path) -> None:
    """Nothing is asked of the hub, and a path that is on it is no missing file."""
    path = tmp_path / "t.yaml"
    path.write_text(JOB.format(train=f"hf://datasets/{NAME}", cache=""))
    assert job_spec.load(path).data.train == f"hf://datasets/{NAME}"
    assert hub.requests == []


IMAGES = """
name: t
task: image-classification
data: {{train: 'hf://datasets/{name}', image_size: 8, stream: {{streams: 2, window: 1}}}}
model: {{name: small-cnn, width: 4}}
train: {{epochs: 2, batch_size: 12}}
"""


@pytest.mark.parametrize(
    ("sends_whole_files", "faults", "glanced"),
    [
        (False, [], 12),
        (False, [Fault(cut=100, times=2, path=".parquet"), Fault(status=503, times=1, path=".parquet")], 12),
        (True, [], 0),
    ],
    ids=["ranges", "cut", "no ranges"],
)
def test_the_labels_of_images_come_without_the_images(
    hub: Hub, tmp_path: Path, sends_whole_files: bool, faults: list[Fault], glanced: int
) -> None:
    """A mirror that sends whole files for parts of them is no error."""
    for file in shards.write_shards(tmp_path / "s", ".parquet", COUNT, 60, side=64).iterdir():
        number = int(file.stem)
        hub.files[f"pictures/train-{number:05}-of-{COUNT:05}.parquet"] = file.read_bytes()
    hub.ignores_range = sends_whole_files
    hub.faults.extend(faults)
    (tmp_path / "t.yaml").write_text(IMAGES.format(name=f"{NAME}/pictures"))
    job = SpecSource(tmp_path / "t.yaml").load()
    assert isinstance(job, ImageJob)
    assert job.data.stream
    store = open_stream.open_store(job, job.data.train, "data.train")
    index = image_shards.index_source(
        job,
        job.data.train,
        LabelForm.of_job(job.data, ask=True),
        "data.train",
        open_stream.open_cache(job.data.stream),
    ).index
    assert (index.indexed_shards, index.ranged_shards) == (12, glanced)
    size = sum(shard.size for shard in store.shards())
    assert (hub.sent < size / 5) is not sends_whole_files
    assert index.rows["label"].to_pylist() == [("dark", "bright")[n % 2] for n in range(12 * 60 - 3)]
