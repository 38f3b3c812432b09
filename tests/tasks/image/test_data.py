"""Images as a data set: size, channels, validation, classes, normalisation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data import partition
from drivetrain.data.labels import sort_class_names
from drivetrain.data.load_data import load
from tests.messages import begins_with, says, says_only
from tests.paths import ROOT
from tests.pictures import job, make_noise, read_refusal, write_folder, write_npz

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("sides", "size"), [([20, 30, 200], 32), ([5, 5, 5], 16), ([1000, 900, 40], 224), ([70, 74, 60], 64)]
)
def test_size_of_files_by_itself(tmp_path: Path, sides: list[int], size: int) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for i, side in enumerate(sides):
            Image.new("RGB", (side, side + 40)).save(tmp_path / name / f"{i}.png")
    data = load(job(tmp_path))
    assert data.preprocessing["image_size"] == size
    assert data.train.gather(np.arange(1))[0].shape == (1, 3, size, size)
    (note,) = [note for note in data.notes if note.startswith("image_size")]
    assert says(note, "image-size-median-short", size, sorted(sides)[1])


def test_one_image_in_colour_makes_three_channels(tmp_path: Path) -> None:
    write_folder(tmp_path, a=4, b=4)
    assert load(job(tmp_path)).preprocessing["channels"] == 1
    Image.new("RGB", (16, 16), (9, 8, 7)).save(tmp_path / "a" / "colour.png")
    data = load(job(tmp_path))
    assert data.preprocessing["channels"] == 3
    assert says_only(data.notes, "channels-some-images-color", 3)
    assert load(job(tmp_path, channels=1)).preprocessing["channels"] == 1


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 0.5, 0.9, 0.99])
def test_validation_is_taken_from_every_class(fraction: float) -> None:
    sizes = {0: 1, 1: 2, 2: 3, 3: 10, 4: 1000}
    labels = np.random.default_rng(0).permutation(np.repeat(list(sizes), list(sizes.values())))
    train_rows, validation_rows = partition.split_fraction(labels, fraction, seed=3)
    assert np.array_equal(np.sort(np.concatenate([train_rows, validation_rows])), np.arange(len(labels)))
    counts = Counter(labels[validation_rows].tolist())
    for label, size in sizes.items():
        expected = 0 if size == 1 else min(max(1, round(size * fraction)), size - 1)
        assert counts[label] == expected


def test_validation_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", make_noise(100, 8, 8), np.arange(100) % 4)

    def list_validation_titles(seed: int) -> list[str]:
        data = load(job(path, seed=seed))
        return [data.validation.title(i) for i in range(len(data.validation))]

    assert list_validation_titles(1) == list_validation_titles(1)
    assert list_validation_titles(1) != list_validation_titles(2)
    assert len(set(list_validation_titles(1)) & set(list_validation_titles(2))) < 15


def test_validation_is_not_the_first_of_each_class() -> None:
    labels = np.repeat([0, 1], 500)
    validation_rows = partition.split_fraction(labels, 0.2, seed=0)[1]
    assert 200 < validation_rows[labels[validation_rows] == 0].mean() < 300
    assert not np.array_equal(validation_rows[:100], validation_rows[100:] - 500)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_folds_are_a_partition_that_spreads_every_class(count: int) -> None:
    labels = np.repeat(np.arange(5), [50, 7, 2, 1, 23])
    parts = [partition.split_fold(labels, number, count, seed=3) for number in range(1, count + 1)]
    all_validation_rows = np.concatenate([part[1] for part in parts])
    assert sorted(all_validation_rows.tolist()) == [i for i in range(len(labels)) if labels[i] != 3]
    for train_rows, validation_rows in parts:
        assert sorted([*train_rows.tolist(), *validation_rows.tolist()]) == list(range(len(labels)))
        sizes = np.bincount(labels[validation_rows], minlength=5)
        assert (abs(sizes - np.array([50, 7, 2, 0, 23]) / count) < 1).all()
        assert set(labels[train_rows]) == set(range(5))
    assert not np.array_equal(parts[0][1], partition.split_fold(labels, 1, count, seed=4)[1])


def test_a_class_of_one_image_stays_in_training(tmp_path: Path) -> None:
    data = load(job(write_folder(tmp_path, a=5, b=5, rare=1)))
    assert says_only(data.notes, "classes-single-image-used")
    assert 2 in data.train.targets[""]
    assert 2 not in data.validation.targets[""]


def test_separate_validation_data(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", a=5, b=5)
    write_folder(tmp_path / "test", b=3)
    (tmp_path / "test" / "b" / "bad.png").touch()
    data = load(job(tmp_path / "train", validation=str(tmp_path / "test"), bad_samples=0.3))
    assert (len(data.train), len(data.validation)) == (10, 3)
    assert data.validation.targets[""].tolist() == [1, 1, 1]
    assert says_only(data.notes, "samples-used-skipped", "data.validation", 1, 4)


def test_a_class_that_only_validation_has(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", cat=5, dog=5)
    write_folder(tmp_path / "test", cat=1, dogs=2, hen=1)
    text = read_refusal(job(tmp_path / "train", validation=str(tmp_path / "test")))
    assert says(text, "classes-training-data", "data.validation", "dogs", 2, "hen", 1)
    assert says(text, "classes-training-data-cat", 2)
    assert 'did you mean "dog"?' in text


def test_images_in_both_splits_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, a=5, b=5)
    data = load(job(tmp_path, validation=f"{tmp_path}/a/.."))
    assert begins_with(data.notes, "validation-images-also-training", 10)


def test_validation_of_another_type(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", make_noise(20, 8, 8), np.arange(20) % 2)
    other = write_npz(tmp_path / "y.npz", make_noise(20, 8, 8) / 255, np.arange(20) % 2)
    text = read_refusal(job(path, validation=str(other)))
    assert begins_with(text, "pixels-between-training-images", "data.validation", "y.npz", 0, 1, 0, 255)


def test_validation_of_another_size_and_kind(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", make_noise(20, 8, 8), np.arange(20) % 2)
    for name in "01":
        (tmp_path / "test" / name).mkdir(parents=True)
        Image.new("RGB", (50, 70), (9, 9, 9)).save(tmp_path / "test" / name / "x.jpg")
    data = load(job(path, validation=str(tmp_path / "test")))
    assert data.validation.gather(np.arange(2))[0].shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        ("b a", "a b"),
        ("10 9", "9 10"),
        ("10 9 x", "10 9 x"),
        ("01 1 0", "0 01 1"),
        ("² 1", "1 ²"),
        ("-2 -10", "-10 -2"),
        ("- 1", "- 1"),
    ],
)
def test_order_of_classes(names: str, ordered: str) -> None:
    assert sort_class_names(names.split()) == tuple(ordered.split())


def test_normalisation_is_of_the_training_images_alone(tmp_path: Path) -> None:
    images = make_noise(200, 8, 8, 3)
    images[..., 1] //= 4
    data = load(job(write_npz(tmp_path / "x.npz", images, np.arange(200) % 2)))
    rows = [int(data.train.title(i).split("[")[1][:-1]) for i in range(len(data.train))]
    train_pixels = images[rows].astype(np.float64) / 255
    assert np.allclose(data.preprocessing["mean"], train_pixels.mean(axis=(0, 1, 2)), atol=1e-12)
    assert np.allclose(data.preprocessing["std"], train_pixels.std(axis=(0, 1, 2)), atol=1e-12)
    ids = np.array([3, 1])
    (ready,) = data.prepare(data.validation.gather(ids), ids, None)
    rows = [int(data.validation.title(i).split("[")[1][:-1]) for i in ids]
    expected = (images[rows] / 255 - train_pixels.mean(axis=(0, 1, 2))) / train_pixels.std(axis=(0, 1, 2))
    assert np.allclose(ready.permute(0, 2, 3, 1), expected, atol=1e-5)


def test_a_constant_channel_is_noted_and_stays_finite(tmp_path: Path) -> None:
    images = make_noise(40, 8, 8, 3)
    images[..., 2] = 77
    data = load(job(write_npz(tmp_path / "x.npz", images, np.arange(40) % 2)))
    assert says_only(data.notes, "channel-constant-centered-scaled")
    (ready,) = data.prepare(data.train.gather(np.arange(8)), np.arange(8), None)
    assert float(ready[:, 2].abs().max()) < 1e-6


def test_preprocessing_is_plain_json(tmp_path: Path) -> None:
    import json

    data = load(job(write_npz(tmp_path / "x.npz", make_noise(40, 8, 8, 3), np.arange(40) % 2)))
    assert json.loads(json.dumps(data.preprocessing)) == data.preprocessing
    assert data.preprocessing["classes"] == ["0", "1"]


def test_the_digits_of_the_first_job() -> None:
    data = load(job(ROOT / "jobs/data/digits.npz", validation=0.2))
    assert data.notes[0] == "1,438 training and 359 validation images, 10 classes"
    assert data.preprocessing["image_size"] == 8
    assert data.preprocessing["channels"] == 1
    assert torch.bincount(data.validation.targets[""]).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    (pixels,) = data.train.gather(np.arange(len(data.train)))
    assert set(pixels.unique().tolist()) == {round(count * 255 / 16) for count in range(17)}
