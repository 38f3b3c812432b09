"""Folders of tables: named splits, tables in several files, and what the datasets library saves, as version 5.2 writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from drivetrain.cli import main
from drivetrain.data import load_data
from drivetrain.data.formats import table_file, table_paths
from drivetrain.data.load_data import load
from drivetrain.data.text.corpus import TextSplit
from drivetrain.errors import DataError, SpecError
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.pretrained import folder as pretrained_folder
from tests import tiny
from tests.messages import saying, says

FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
}
SPEC = "name: t\ntask: text-classification\ndata: {train: %s, text: text, labels: label%s}\n"
WORDS = ["the", "pump", "leaks", "again", "and", "the", "motor", "is", "hot"]


def rows(start: int, count: int) -> pyarrow.Table:
    """Texts with the numbers of their classes, and the names of the classes as the datasets library stores them."""
    places = range(start, start + count)
    table = pyarrow.table({"text": [f"{WORDS[i % 9]} {i}" for i in places], "label": [i % 2 for i in places]})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def shards(folder: Path, split: str, count: int, ending: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path, table = folder / f"{split}-{number:05}-of-{count:05}.{ending}", rows(number * 20, 20)
        if ending == "parquet":
            parquet.write_table(table, path)
            continue
        with ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)


def save_dataset(folder: Path) -> Path:
    """The files of `DatasetDict(train=..., test=...).save_to_disk(folder, num_shards={"train": 2, "test": 1})`."""
    for split, count in (("train", 2), ("test", 1)):
        shards(folder / split, "data", count, "arrow")
        names = [{"filename": f"data-{number:05}-of-{count:05}.arrow"} for number in range(count)]
        (folder / split / "state.json").write_text(json.dumps({"_data_files": names, "_split": None}))
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


def job(folder: Path, train: str, data_options: str = "") -> Job:
    (folder / "job.yaml").write_text(SPEC % (train, data_options))
    return job_spec.load(folder / "job.yaml")


def test_a_saved_dataset_is_read_with_its_splits_and_class_names(tmp_path: Path) -> None:
    save_dataset(tmp_path / "disk")
    spec: Any = job(tmp_path, "disk")
    assert says(spec.notes[0], "disk-splits-data-set")
    assert spec.data.test == "disk/test/data-00000-of-00001.arrow"
    data = load(spec)
    assert data.heads[""].classes == ("neg", "pos")
    assert len(data.train) + len(data.validation) == 40
    new = load_data.load_new(
        [table_paths.find_table(tmp_path / "disk/test", "data")], data.preprocessing, data.heads, labelled=True
    )
    assert isinstance(new.split, TextSplit)
    assert new.split.targets[""].tolist() == [0, 1] * 10


OUTSIDE = ("../private/p", "/PRIVATE/p", "../own/../private/p", "..", "p\0", "link/p")
"""Names that lead out of a folder, or nowhere; PRIVATE stands for the path of a folder beside it, to which `link` leads."""
IMAGE_CELLS = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
IMAGES_SPEC = "name: x\ntask: image-classification\ndata: {train: %s%s}\n"


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize(
    ("file", "write"),
    [
        ("state.json", lambda path, name: path.write_text(json.dumps({"_data_files": [{"filename": name}]}))),
        ("dataset_dict.json", lambda path, name: path.write_text(json.dumps({"splits": [name]}))),
        ("list.csv", lambda path, name: path.write_text(f"path,label\n{name},a\nx,b\n")),
        ("list.jsonl", lambda path, name: path.write_text(json.dumps({"path": name, "label": "a"}))),
        (
            "list.parquet",
            lambda path, name: parquet.write_table(
                pyarrow.table({"path": pyarrow.array([{"path": name}], IMAGE_CELLS), "label": ["a"]}), path
            ),
        ),
    ],
)
def test_names_in_a_folder_lead_nowhere_else(tmp_path: Path, file: str, write: Any, name: str) -> None:
    """A stranger may have written the folder: whatever lies beside it is not read."""
    own, private = tmp_path / "own", tmp_path / "private"
    save_dataset(private)
    (private / "train").rename(private / "p")
    own.mkdir()
    (own / "link").symlink_to(private)
    write(own / file, name.replace("/PRIVATE", str(private)))
    is_saved = file.endswith(".json")
    if name == "link/p" and not is_saved:
        return  # a link is of the user, who may keep images elsewhere
    (tmp_path / "job.yaml").write_text(SPEC % ("own", "") if is_saved else IMAGES_SPEC % (f"own/{file}", ""))
    with pytest.raises(DataError, check=saying("is-not-below-folder", own)):
        load(job_spec.load(tmp_path / "job.yaml"))


def test_an_index_of_weights_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../outside.safetensors"}}')
    with pytest.raises(SpecError, check=saying("is-not-below-folder", tmp_path)):
        pretrained_folder.locate(tiny.job(), str(tmp_path))


@pytest.mark.parametrize("inside", ["", "data"])
def test_a_folder_of_parquet_files(tmp_path: Path, inside: str) -> None:
    """As `to_parquet` and `push_to_hub` name them; the first file stands for all."""
    for split, count in (("train", 3), ("validation", 1)):
        shards(tmp_path / "hub" / inside, split, count, "parquet")
    spec: Any = job(tmp_path, "hub")
    assert spec.data.validation == str(Path("hub", inside, "validation-00000-of-00001.parquet"))
    assert len(load(spec).train) == 60
    first = tmp_path / "hub" / inside / "train-00000-of-00003.parquet"
    assert table_file.read(first, "k")["label"].to_pylist() == ["neg", "pos"] * 30
    assert table_file.head(first, "k", 5)[1] == 60
    first.with_name("train-00002-of-00003.parquet").unlink()
    with pytest.raises(DataError, check=saying("is-one-of-files-of-table", 3, 1, "train-00002-of-00003.parquet")):
        table_file.read(first, "k")


def test_files_with_numbers_are_one_table_in_the_cache_of_the_hub_only(tmp_path: Path) -> None:
    """Elsewhere 0001.parquet can be for validation: its rows would be trained with."""
    cached = tmp_path / "datasets--a--b" / "snapshots" / ("0" * 40) / "default" / "train"
    for folder, count in ((tmp_path / "own", 20), (cached, 40)):
        folder.mkdir(parents=True)
        for number in range(2):
            parquet.write_table(rows(number * 20, 20), folder / f"{number:04}.parquet")
        assert len(table_file.read(folder / "0000.parquet", "k")["label"]) == count
        assert len(table_file.read(folder / "0001.parquet", "k")["label"]) == 20


def test_a_folder_with_train_and_val(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    for name in ("train", "val", "test"):
        (tmp_path / "csv" / f"{name}.csv").write_text("text,label\n" + "a b,x\nc d,y\n" * 10)
    spec: Any = job(tmp_path, "csv")
    assert (spec.data.train, spec.data.validation, spec.data.test) == (
        "csv/train.csv",
        "csv/val.csv",
        "csv/test.csv",
    )
    spec_with_share: Any = job(tmp_path, "csv", ", validation: 0.25")
    assert spec_with_share.data.validation == 0.25
    assert says(spec_with_share.notes[0], "is-not-used-since-is", "val.csv", "data.validation", "0.25")


def test_folders_that_are_not_clear(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    for name, message in (
        ("loader.py", "is a folder without a table; its loader.py is code, which is not run"),
        ("a.csv", ""),
        ("b.csv", "is a folder with 2 tables, and none is called train: a, b"),
        ("train.csv", ""),
        ("train.parquet", "for one split"),
    ):
        (folder / name).write_text("text,label\na,b\n")
        if not message:
            assert table_paths.find_splits(folder, "k")
            continue
        with pytest.raises(DataError, match=message):
            job(tmp_path, "x")


def test_init_drafts_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_dataset(Path("disk"))
    for split in ("train", "validation"):
        shards(Path("hub", "data"), split, 2, "parquet")
    for name, test in (("disk", "disk/test/data-00000-of-00001.arrow"), ("hub", None)):
        assert main.main(["init", name, "--text", "text", "--target", "label"]) == 0
        draft: Any = job_spec.load(Path(f"{name}.yaml"))
        assert f"train: {name} " in Path(f"{name}.yaml").read_text()
        assert draft.data.test == test
        assert isinstance(draft.data.validation, str) == (name == "hub")
        assert load(draft).heads[""].classes == ("neg", "pos")
