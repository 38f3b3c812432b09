"""Images inside Parquet and Arrow files, as image datasets of Hugging Face have them; compared with the same files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import ipc, parquet

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tasks.image import image_column, image_files
from drivetrain.tasks.image.image_files import Files
from drivetrain.tasks.image.job import ImageRegressionJob
from tests import pictures
from tests.messages import saying, says, says_only
from tests.pictures import job

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
META = {
    "huggingface": json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": ["day", "night"]}}}})
}


def encode_image(number: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (24, 24 + number % 3, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def cells(count: int) -> list[dict[str, Any] | None]:
    return [{"bytes": encode_image(n, "JPEG" if n % 2 else "PNG"), "path": f"{n}.png"} for n in range(count)]


def table(images: list[Any], kind: Any = IMAGE, name: str = "image", **columns: Any) -> pyarrow.Table:
    arrow_table = pyarrow.table({name: pyarrow.array(images, kind), **columns})
    return arrow_table.replace_schema_metadata(META)


def write(path: Path, arrow_table: pyarrow.Table) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(arrow_table, path, row_group_size=7)
    else:
        with ipc.new_stream(str(path), arrow_table.schema) as stream:
            stream.write_table(arrow_table, 7)
    return path


def as_files(folder: Path, images: list[Any], labels: list[str]) -> Path:
    """The same images as files with a manifest."""
    folder.mkdir()
    for number, image in enumerate(images):
        (folder / f"{number}.img").write_bytes(image["bytes"])
    rows = "".join(f"{number}.img,{label}\n" for number, label in enumerate(labels))
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    return folder / "list.csv"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_same_pixels_and_classes_as_files(tmp_path: Path, suffix: str) -> None:
    images = cells(20)
    path = write(tmp_path / f"train{suffix}", table(images, label=[n % 2 for n in range(20)]))
    from_table = load(job(path))
    from_files = load(job(as_files(tmp_path / "files", images, [("day", "night")[n % 2] for n in range(20)])))
    assert from_table.heads[""].classes == ("day", "night")
    for one, other in ((from_table.train, from_files.train), (from_table.validation, from_files.validation)):
        ids = np.arange(len(one))
        assert torch.equal(one.gather(ids)[0], other.gather(ids)[0])
        assert torch.equal(one.targets[""], other.targets[""])
    assert says_only(from_table.notes, "images-those-column", "data.train", "image")
    assert from_table.preprocessing["mean"] == from_files.preprocessing["mean"]
    assert from_table.train.title(0).startswith(f"{tmp_path}/train{suffix} row ")
    assert from_table.files == {}, "the table itself is compared when the run is resumed"


def test_damaged_images_are_left_out_like_files(tmp_path: Path) -> None:
    images = cells(40)
    images[3] = {"bytes": encode_image(3)[:60], "path": "cut.png"}
    images[4] = {"bytes": b"", "path": None}
    images[5] = None
    path = write(tmp_path / "train.parquet", table(images, label=[n % 2 for n in range(40)]))
    dataset = load(job(path, bad_samples=0.1))
    notes = "\n".join(dataset.notes)
    assert len(dataset.train) + len(dataset.validation) == 37
    assert "row 4 (cut.png)" in notes
    assert "row 5: empty file" in notes
    assert "image is empty" in notes
    assert "40" in pictures.read_refusal(job(path, bad_samples=0.01))


def test_several_labels_and_numbers(tmp_path: Path) -> None:
    labels = [[["red", "wide"], ["red"], []][n % 3] for n in range(20)]
    path = write(tmp_path / "many.parquet", table(cells(20), tags=labels, age=[float(n) for n in range(20)]))
    several = load(job(path, label_column=("tags",), multi_label=True))
    assert several.heads[""].classes == ("red", "wide")
    ages = ImageRegressionJob.model_validate(
        {
            "name": "t",
            "task": "image-regression",
            "data": {"train": str(path), "validation": 0.25, "label_column": "age"},
        }
    )
    assert len(load(ages).train) == 15


def test_bytes_alone_and_paths_alone(tmp_path: Path) -> None:
    images = cells(12)
    plain = write(
        tmp_path / "b.parquet",
        table([cell["bytes"] for cell in images if cell], pyarrow.binary(), "photo", label=["a", "b"] * 6),
    )
    assert len(load(job(plain, path_column="photo")).train) == 8
    (tmp_path / "x").mkdir()
    for number, cell in enumerate(images):
        (tmp_path / "x" / f"{number}.png").write_bytes(cell["bytes"] if cell else b"")
    paths = [{"bytes": None, "path": f"x/{n}.png"} for n in range(12)]
    assert len(load(job(write(tmp_path / "p.parquet", table(paths, label=["a", "b"] * 6)))).train) == 8


def test_two_columns_of_images_are_asked_for(tmp_path: Path) -> None:
    arrow_table = table(cells(8), label=["a", "b"] * 4).append_column("mask", pyarrow.array(cells(8), IMAGE))
    path = write(tmp_path / "two.parquet", arrow_table)
    assert 'has no column "path"' in pictures.read_refusal(job(path))
    assert len(load(job(path, path_column="mask")).train) == 6


def test_more_images_than_memory_in_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow_table = table(cells(20), label=[n % 2 for n in range(20)])
    monkeypatch.setattr(image_column, "read_memory_limit", lambda: 10_000)
    message = pictures.read_refusal(job(write(tmp_path / "t.parquet", arrow_table)))
    assert says(message, "images-in-column-of", "image")
    assert says(message, "and-memory-limit-is")
    assert "save_to_disk" in message
    assert len(load(job(write(tmp_path / "t.arrow", arrow_table))).train) == 16, "an Arrow file is mapped"


def test_decoded_images_are_cached_and_follow_the_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(cells(12), label=["a", "b"] * 6))
    images = load(job(path)).train.images  # type: ignore[attr-defined]
    assert isinstance(images, Files)
    cache = image_files.cache_decoded(images, tmp_path / "cache", 1 << 30)
    rows = np.array([3, 1])
    assert torch.equal(cache.gather(rows), images.gather(rows))
    assert image_files.cache_decoded(images, tmp_path / "cache", 1 << 30).path == cache.path
    write(path, table(list(reversed(cells(12))), label=["a", "b"] * 6))
    changed_images = load(job(path)).train.images  # type: ignore[attr-defined]
    assert image_files.cache_decoded(changed_images, tmp_path / "cache", 1 << 30).path != cache.path


def test_decoded_images_of_two_columns_are_not_confused(tmp_path: Path) -> None:
    other = [{"bytes": encode_image(n + 50), "path": f"{n}.png"} for n in range(12)]
    arrow_table = table(cells(12), label=["a", "b"] * 6).append_column("mask", pyarrow.array(other, IMAGE))
    path = write(tmp_path / "t.parquet", arrow_table)
    rows = np.arange(4)
    for name in ("image", "mask"):
        images = load(job(path, path_column=name)).train.images  # type: ignore[attr-defined]
        cache = image_files.cache_decoded(images, tmp_path / "cache", 1 << 30)
        assert torch.equal(cache.gather(rows), images.gather(rows)), name


def test_decoded_images_follow_the_files_that_cells_name(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(encode_image(number))
    paths = [{"bytes": None, "path": f"{number}.png"} for number in range(12)]
    path = write(tmp_path / "t.parquet", table(paths, label=["a", "b"] * 6))
    rows = np.arange(9)
    for shift in (0, 50):
        for number in range(12):
            (tmp_path / f"{number}.png").write_bytes(encode_image(number + shift))
        images = load(job(path)).train.images  # type: ignore[attr-defined]
        cache = image_files.cache_decoded(images, tmp_path / "cache", 1 << 30)
        assert torch.equal(cache.gather(rows), images.gather(rows)), shift


def test_new_images_of_a_table(tmp_path: Path) -> None:
    dataset = load(job(write(tmp_path / "t.parquet", table(cells(12), label=[0, 1] * 6))))
    new = write(tmp_path / "new.parquet", table(cells(5)))
    new_data = load_data.load_new([new], dataset.preprocessing, dataset.heads, labelled=False)
    assert new_data.split.title(0) == "new.parquet row 1 (0.png)"
    assert len(new_data.split) == 5
    labelled = load_data.load_new([tmp_path / "t.parquet"], dataset.preprocessing, dataset.heads, labelled=True)
    assert labelled.split.targets[""].tolist() == [0, 1] * 6
    with pytest.raises(DataError, check=saying("table-with-images-in-it")):
        load_data.load_new([new, new], dataset.preprocessing, dataset.heads, labelled=False)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train.parquet", "test.parquet"),
        ("train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"),
    ],
)
def test_a_folder_that_the_datasets_library_wrote(tmp_path: Path, train: str, test: str) -> None:
    """`to_parquet` and `save_to_disk`: the splits are recognized as those of texts are."""
    folder = tmp_path / "set"
    for name in (train, test):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, table(cells(20), label=[n % 2 for n in range(20)]))
        if name.endswith(".arrow"):
            state = json.dumps({"_data_files": [{"filename": Path(name).name}], "_split": None})
            (folder / name).with_name("state.json").write_text(state)
    if train.endswith(".arrow"):
        (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    path = tmp_path / "job.yaml"
    path.write_text("name: t\ntask: image-classification\ndata: {train: set, image_size: 16}\n")
    spec: Any = job_spec.load(path)
    assert (spec.data.train, spec.data.test) == (f"set/{train}", f"set/{test}")
    assert load(spec).heads[""].classes == ("day", "night")
    # Class folders stay what they are, whatever table lies beside them.
    (folder / "cat").mkdir()
    if train == "train.parquet":
        spec_with_class_folder: Any = job_spec.load(path)
        assert spec_with_class_folder.data.train == "set"
