"""Copies of a sample are on one side of a split, and what is on both sides is said."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from drivetrain.data import copies
from drivetrain.data.dataset import Dataset, InputRecord
from drivetrain.data.load_data import add_test, load
from drivetrain.data.partition import COPIES_KEY
from drivetrain.job import Job
from drivetrain.tasks import JOBS
from tests.messages import begins_with, get_message, says

torch.set_num_threads(1)

COUNT, TIMES = 40, 4
Write = Callable[[Path], dict[str, Any]]


def job(folder: Path, task: str, data: dict[str, Any], seed: int = 0) -> Job:
    settings = {"train": {"seed": seed}} | ({} if task != "text-classification" else {"model": {"name": "encoder"}})
    rows = {
        name: str(folder / value) if name in ("train", "validation", "test") else value for name, value in data.items()
    }
    return JOBS[task].model_validate(
        {"name": "t", "task": task, "data": ({} if "fold" in rows else {"validation": 0.25}) | rows, **settings}
    )


def noise(count: int = COUNT, *, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)


def labels(count: int = COUNT) -> list[str]:
    return ["ab"[number % 2] for number in range(count)]


def sentences(count: int = COUNT) -> list[str]:
    word_numbers = np.random.default_rng(0).integers(0, 500, (count, 12))
    return [" ".join(f"word{number}" for number in row) for row in word_numbers.tolist()]


def write_rows(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def repeated_rows_of_a_manifest(folder: Path) -> dict[str, Any]:
    for number, pixels in enumerate(noise()):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    write_rows(folder / "m.csv", ["path", "label"], [[f"{n}.png", label] for n, label in enumerate(labels())] * TIMES)
    return {"train": "m.csv"}


def copies_under_other_names(folder: Path) -> dict[str, Any]:
    for number, (pixels, label) in enumerate(zip(noise(), labels(), strict=True)):
        (folder / label).mkdir(exist_ok=True)
        first = folder / label / f"{number}.png"
        Image.fromarray(pixels).save(first)
        shutil.copy(first, folder / label / f"{number} (1).png")
        (folder / label / f"{number} link.png").symlink_to(first)
        # The same pixels in another file format.
        Image.fromarray(pixels).save(folder / label / f"{number}.bmp")
    return {"train": "."}


def repeated_arrays(folder: Path) -> dict[str, Any]:
    np.savez(folder / "x.npz", images=np.tile(noise(), (TIMES, 1, 1, 1)), labels=np.array(labels() * TIMES))
    return {"train": "x.npz"}


def repeated_numbers_of_images(folder: Path) -> dict[str, Any]:
    values = np.random.default_rng(1).normal(size=COUNT)
    np.savez(folder / "x.npz", images=np.tile(noise(), (TIMES, 1, 1, 1)), labels=np.tile(values, TIMES))
    return {"train": "x.npz"}


def repeated_cells(folder: Path) -> dict[str, Any]:
    for number, pixels in enumerate(noise()):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    cells = [{"bytes": (folder / f"{number}.png").read_bytes(), "path": None} for number in range(COUNT)]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({"image": pyarrow.array(cells * TIMES, kind), "label": labels() * TIMES})
    parquet.write_table(table, folder / "x.parquet")
    return {"train": "x.parquet"}


def repeated_texts(folder: Path) -> dict[str, Any]:
    forms = [sentences(), [text.upper() for text in sentences()], [f" {text}  " for text in sentences()], sentences()]
    rows = [[text, label] for form in forms for text, label in zip(form, labels(), strict=True)]
    write_rows(folder / "t.csv", ["text", "label"], rows)
    return {"train": "t.csv", "text": "text", "labels": "label"}


def repeated_rows(folder: Path) -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(COUNT, 4)).round(3).tolist()
    write_rows(
        folder / "t.csv", ["p", "q", "r", "s", "y"], [[*r, y] for r, y in zip(rows, labels(), strict=True)] * TIMES
    )
    return {"train": "t.csv", "target": "y"}


def repeated_rows_with_numbers(folder: Path) -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(COUNT, 4)).round(3).tolist()
    write_rows(folder / "t.csv", ["p", "q", "r", "y"], rows * TIMES)
    return {"train": "t.csv", "target": "y"}


def repeated_windows(folder: Path) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(COUNT, 9, 2)).astype(np.float32)
    np.savez(folder / "x.npz", x=np.tile(x, (TIMES, 1, 1)), y=np.array(labels() * TIMES))
    return {"train": "x.npz"}


FORMS: list[tuple[str, Write]] = [
    ("image-classification", repeated_rows_of_a_manifest),
    ("image-classification", copies_under_other_names),
    ("image-classification", repeated_arrays),
    ("image-classification", repeated_cells),
    ("image-regression", repeated_numbers_of_images),
    ("text-classification", repeated_texts),
    ("tabular-classification", repeated_rows),
    ("tabular-regression", repeated_rows_with_numbers),
    ("series-classification", repeated_windows),
]


def on_both_sides(data: Dataset) -> int:
    training, validation = data.train, data.validation
    assert isinstance(training, copies.ComparableSplit)
    assert isinstance(validation, copies.ComparableSplit)
    return int(np.isin(validation.contents(), training.contents()).sum())


@pytest.mark.parametrize(("task", "write"), FORMS, ids=[write.__name__ for _, write in FORMS])
def test_copies_are_on_one_side(tmp_path: Path, task: str, write: Write) -> None:
    training_job = job(tmp_path, task, write(tmp_path))
    data = load(training_job)
    assert on_both_sides(data) == 0
    assert len(data.train) + len(data.validation) == COUNT * TIMES
    assert 0.15 < len(data.validation) / (COUNT * TIMES) < 0.35
    (note,) = [note for note in data.notes if "are copies of others" in note]
    assert f"{COUNT * (TIMES - 1)} of {COUNT * TIMES} " in note
    # A resumed run has the same split, and one that was recorded before copies were looked for keeps the one it had.
    record = InputRecord(data.preprocessing, data.heads)
    assert torch.equal(load(training_job, record).train.targets[""], data.train.targets[""])
    before = {name: value for name, value in data.preprocessing.items() if name != COPIES_KEY}
    if write is not repeated_windows:  # they share rows, too
        assert on_both_sides(load(training_job, replace(record, preprocessing=before))) > 0


@pytest.mark.parametrize(("task", "write"), FORMS, ids=[write.__name__ for _, write in FORMS])
def test_what_is_in_training_and_in_a_file_of_its_own_is_said(tmp_path: Path, task: str, write: Write) -> None:
    data = write(tmp_path)
    training_job = job(tmp_path, task, data | {"validation": data["train"], "test": data["train"]})
    dataset = load(training_job)
    add_test(training_job, dataset)
    lines = "\n".join(dataset.notes)
    assert f"{COUNT * TIMES} " in lines
    assert get_message("also-training-data") in lines or "identical to training" in lines
    for name in ("training", "validation"):
        assert says(lines, "samples-final-test-also", COUNT * TIMES, name)


def test_folds_are_a_partition_of_what_is_different(tmp_path: Path) -> None:
    data = repeated_rows_of_a_manifest(tmp_path)
    titles = []
    for fold in ("1/3", "2/3", "3/3"):
        split = load(job(tmp_path, "image-classification", data | {"fold": fold})).validation
        titles += sorted({split.title(index) for index in range(len(split))})
    assert len(titles) == len(set(titles)) == COUNT


def test_copies_join_the_groups_that_they_are_in(tmp_path: Path) -> None:
    for number, pixels in enumerate(noise()):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    rows = [[f"{n % COUNT}.png", labels()[n % COUNT], f"patient {n // 2}"] for n in range(2 * COUNT)]
    write_rows(tmp_path / "m.csv", ["path", "label", "patient"], rows)
    data = load(job(tmp_path, "image-classification", {"train": "m.csv", "groups": "patient"}))
    assert on_both_sides(data) == 0
    assert begins_with(data.notes, "images-copies-others", 40, 80)


def test_one_path_with_two_labels_is_listed(tmp_path: Path) -> None:
    for number, pixels in enumerate(noise()):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    write_rows(tmp_path / "m.csv", ["path", "label"], [[f"{n}.png", label] for n in range(COUNT) for label in "ab"])
    data = load(job(tmp_path, "image-classification", {"train": "m.csv"}))
    (note,) = [note for note in data.notes if "different labels" in note]
    assert begins_with(note, "images-occur-different-labels", COUNT)
    assert "0.png (a, b)" in note
    assert note.endswith(f"and {COUNT - 3} more")


def write_rotated(pixels: Any, path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(pixels))).save(path.with_suffix(".png"), exif=exif)


def opaque(pixels: Any, path: Path) -> None:
    Image.fromarray(pixels).convert("RGBA").save(path.with_suffix(".PNG"))


def opaque_gray(pixels: Any, path: Path) -> None:
    Image.fromarray(pixels).convert("LA").save(path.with_suffix(".png"))


def of_16_bits(pixels: Any, path: Path) -> None:
    Image.fromarray(pixels.astype(np.uint16)).save(path.with_suffix(".png"))


def of_all_16_bits(pixels: Any, path: Path) -> None:
    Image.fromarray(pixels.astype(np.uint16) * 257).save(path.with_suffix(".tif"))


@pytest.mark.parametrize("save", [write_rotated, opaque, opaque_gray, of_16_bits, of_all_16_bits])
def test_a_copy_in_another_form_of_file_is_a_copy(tmp_path: Path, save: Callable[[Any, Path], None]) -> None:
    gray = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12), dtype=np.uint8)
    for number, (pixels, label) in enumerate(zip(gray, labels(), strict=True)):
        (tmp_path / "images" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.bmp")
        save(pixels, tmp_path / "images" / label / f"{number} copy")
    data = load(job(tmp_path, "image-classification", {"train": "images"}))
    assert begins_with(data.notes, "images-copies-others", COUNT, 2 * COUNT)


def test_images_that_lie_on_another_side_are_no_copies(tmp_path: Path) -> None:
    """Only the orientation in their EXIF data tells them apart."""
    for number, pixels in enumerate(noise()):
        for orientation, label in ((1, "upright"), (3, "upside down")):
            exif = Image.Exif()
            exif[0x0112] = orientation
            (tmp_path / "images" / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png", exif=exif)
    data = load(job(tmp_path, "image-classification", {"train": "images"}))
    assert not [note for note in data.notes if "copies" in note or "different labels" in note]


def test_texts_with_two_labels_are_listed(tmp_path: Path) -> None:
    rows = [[text, label] for text in sentences() for label in "ab"]
    write_rows(tmp_path / "t.csv", ["text", "label"], rows)
    data = load(job(tmp_path, "text-classification", {"train": "t.csv", "text": "text", "labels": "label"}))
    assert says(data.notes, "texts-occur-different-labels", COUNT, "label")


def test_rows_of_few_kinds_are_no_copies(tmp_path: Path) -> None:
    """Rows of a table of two categories repeat by chance: whole kinds of them would be missing in training."""
    draws = np.random.default_rng(0).integers(0, 2, (200, 3))
    rows = [["yn"[p], "yn"[q], "ab"[p ^ (r > 1)]] for p, q, r in draws.tolist()]
    write_rows(tmp_path / "t.csv", ["p", "q", "y"], rows)
    data = load(job(tmp_path, "tabular-classification", {"train": "t.csv", "target": "y"}))
    assert COPIES_KEY not in data.preprocessing
    assert len(data.validation) == 50
    assert says(data.notes, "validation-rows-identical-training", 4)


def test_without_copies_nothing_is_said_or_stored(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=noise(), labels=np.array(labels()))
    data = load(job(tmp_path, "image-classification", {"train": "x.npz"}))
    assert COPIES_KEY not in data.preprocessing
    assert not [note for note in data.notes if "copies" in note or "identical" in note]


def test_images_of_one_color_are_split_as_they_are(tmp_path: Path) -> None:
    """Where each class has a single different image, nothing would be left for validation."""
    pixels = np.repeat(np.array([[10], [200]], np.uint8), 20, axis=0)[:, :, None] * np.ones((1, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.repeat(["a", "b"], 20))
    data = load(job(tmp_path, "image-classification", {"train": "x.npz"}))
    assert len(data.validation) == 10
    assert says(data.notes, "validation-images-identical-training", 10, 10)


def features(split: Any) -> torch.Tensor:
    """A row of numbers for each sample: its values, or how often each token occurs."""
    inputs = split.gather(np.arange(len(split)))
    if inputs[0].dtype != torch.int64:
        return torch.cat([part.float().flatten(1) for part in inputs], dim=1)
    tokens, mask = inputs[0], inputs[-1].bool()
    return torch.stack(
        [torch.bincount(row[real], minlength=10_000) for row, real in zip(tokens, mask, strict=True)]
    ).float()


def score_by_heart(data: Dataset) -> float:
    """The validation accuracy of a model that knows all training samples by heart: the label of the nearest one."""
    nearest = torch.cdist(features(data.validation), features(data.train)).argmin(dim=1)
    training, validation = data.train.targets[""], data.validation.targets[""]
    if training.is_floating_point():
        training, validation = training > training.median(), validation > training.median()
    return float((training[nearest] == validation).float().mean())


@pytest.mark.parametrize(("task", "write"), FORMS, ids=[write.__name__ for _, write in FORMS])
def test_random_labels_do_not_score_above_chance(tmp_path: Path, task: str, write: Write) -> None:
    """Labels alternate, and say nothing about the noise: a model that learned it by heart is right on copies only."""
    data = write(tmp_path)
    scores = [score_by_heart(load(job(tmp_path, task, data, seed))) for seed in range(6)]
    assert 0.3 < np.mean(scores) < 0.7
    separate = load(job(tmp_path, task, data | {"validation": data["train"]}))
    if task != "text-classification":  # whose forms of one text have other tokens
        assert score_by_heart(separate) == 1.0
    assert any(get_message("also-training-data") in note or "identical to training" in note for note in separate.notes)
