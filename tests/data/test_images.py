"""Images as a data set: arrays, class folders, classes, validation, size, normalisation."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from runtime.data import stratify
from runtime.data.images import load
from runtime.data.labels import class_names
from runtime.errors import DataError
from runtime.job.job import ImageJob

torch.set_num_threads(1)


def job(train: Path, *, seed: int = 0, **data: object) -> ImageJob:
    given = {"name": "t", "task": "image-classification", "data": {"train": str(train), "validation": 0.25, **data},
             "train": {"seed": seed}}  # fmt: skip
    return ImageJob.model_validate(given)


def npz(path: Path, images: Any, labels: Any, **more: Any) -> Path:
    np.savez_compressed(path, images=images, labels=labels, **more)
    return path


def noise(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def folder(root: Path, **classes: int) -> Path:
    """So many small images of each class."""
    for number, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (16, 16), 50 * number + i).save(root / name / f"{i:02}.png")
    return root


def message(wanted: ImageJob) -> str:
    with pytest.raises(DataError) as error:
        load(wanted)
    assert error.value.exit_code == 3
    assert "  possible: " in str(error.value)
    assert "  do: " in str(error.value)
    return str(error.value)


# ------------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((20, 8, 8), (1, 8, 8)), ((20, 8, 8, 1), (1, 8, 8)), ((20, 8, 8, 3), (3, 8, 8)), ((20, 1, 8, 8), (1, 8, 8)),
     ((20, 3, 8, 8), (3, 8, 8)), ((20, 8, 12, 3), (3, 8, 8)), ((20, 3, 3, 3), None)],
)  # fmt: skip
def test_forms_of_arrays(tmp_path: Path, shape: tuple[int, ...], seen: tuple[int, ...] | None) -> None:
    images = noise(*shape)
    path = npz(tmp_path / "x.npz", images, np.arange(20) % 2)
    data = load(job(path, **({"image_size": 4} if seen is None else {})))
    (pixels,) = data.train.gather(np.arange(3))
    assert pixels.shape[1:] == (seen or (3, 4, 4))
    assert pixels.dtype == torch.uint8
    if shape == (20, 8, 8, 3):
        row = int(data.train.title(0).split("[")[1][:-1])
        assert np.array_equal(pixels[0].permute(1, 2, 0).numpy(), images[row])
    if shape == (20, 8, 12, 3):
        row = int(data.train.title(0).split("[")[1][:-1])
        assert np.array_equal(pixels[0].permute(1, 2, 0).numpy(), images[row, :, 2:10])


PIXELS = {
    "uint8": (noise(20, 8, 8), "uint8", ""),
    "bool": (noise(20, 8, 8) > 99, "uint8", "x.npz: bool images become 0 and 255"),
    "float32": (noise(20, 8, 8) / np.float32(255), "float32", ""),
    "float64": (noise(20, 8, 8) / 255, "float32", "x.npz: float64 images become float32"),
    "int64": (noise(20, 8, 8, dtype=np.int64), "float32", "x.npz: int64 images become float32"),
    "wide": (np.where(noise(20, 8, 8) > 99, 3.0, -2.0), "float32", "pixels from -2 to 3 become 0 to 1"),
}


@pytest.mark.parametrize("case", PIXELS)
def test_types_of_pixels(tmp_path: Path, case: str) -> None:
    images, kind, note = PIXELS[case]
    data = load(job(npz(tmp_path / "x.npz", images, np.arange(20) % 2)))
    raw = data.train.gather(np.arange(len(data.train)))
    assert str(raw[0].dtype) == f"torch.{kind}"
    assert note == "" or note in data.notes
    (ready,) = data.prepare(raw, np.arange(len(data.train)), None)
    assert ready.dtype == torch.float32
    assert abs(float(ready.mean())) < 1e-4
    assert abs(float(ready.std(correction=0)) - 1) < 1e-4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [(np.arange(20) % 3, "0 1 2"), (np.arange(20) % 11, "0 1 2 3 4 5 6 7 8 9 10"),
     (np.array(["cat", "dog"] * 10), "cat dog"), (np.array([b"dog", b"cat"] * 10), "cat dog"),
     (np.array([True, False] * 10), "False True"), (np.array([[1], [0]] * 10), "0 1"),
     (np.array([-1, 1] * 10), "-1 1"), (np.array(["10", "9"] * 10), "9 10"), (np.array(["10", "b"] * 10), "10 b")],
)  # fmt: skip
def test_labels_of_arrays(tmp_path: Path, labels: Any, classes: str) -> None:
    data = load(job(npz(tmp_path / "x.npz", noise(20, 8, 8), labels)))
    assert data.heads[""].classes == tuple(classes.split())
    for split in (data.train, data.validation):
        for i in range(len(split)):
            row = int(split.title(i).split("[")[1][:-1])
            written = labels.reshape(-1)[row]
            name = written.decode() if isinstance(written, bytes) else str(written)
            assert data.heads[""].classes[int(split.targets[""][i])] == name


def broken_zip(path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, images=noise(20, 8, 8), labels=np.arange(20))
    path.write_bytes(content.getvalue()[:-100])


def not_an_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", b"\x93NUMPY nothing")
        file.writestr("labels.npy", b"")


ARRAYS: dict[str, tuple[Any, str]] = {
    "no labels": (lambda path: np.savez(path, images=noise(9, 8, 8)), "has the arrays images\n"),
    "other names": (lambda path: np.savez(path, x=noise(9, 8, 8), y=np.arange(9)), "has the arrays x, y\n"),
    "objects": (lambda path: npz(path, np.array([{}] * 9, object), np.arange(9)), "Python objects (pickle)"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x04N."), "Python objects (pickle)"),
    "empty file": (lambda path: path.touch(), "cannot be read: it is empty"),
    "cut": (broken_zip, "cannot be read: File is not a zip file"),
    "damaged": (not_an_array, "cannot be read: "),
    "flat": (lambda path: npz(path, noise(9, 64), np.arange(9)), "images of"),
    "4 channels": (lambda path: npz(path, noise(9, 8, 8, 4), np.arange(9)), "have shape (9, 8, 8, 4)"),
    "no images": (lambda path: npz(path, noise(0, 8, 8), np.arange(0)), "have shape (0, 1, 8, 8): nothing"),
    "text images": (lambda path: npz(path, np.full((9, 8, 8), "x"), np.arange(9)), "images of"),
    "lengths": (lambda path: npz(path, noise(9, 8, 8), np.arange(8)), "has 9 images and 8 labels"),
    "float labels": (lambda path: npz(path, noise(9, 8, 8), np.arange(9) / 2), "are float64 of shape (9,)"),
    "one-hot labels": (lambda path: npz(path, noise(9, 8, 8), np.eye(9, dtype=int)), "are int64 of shape (9, 9)"),
    "one class": (lambda path: npz(path, noise(9, 8, 8), np.ones(9, int)), "9 images of 1 class: 1"),
    "each alone": (lambda path: npz(path, noise(9, 8, 8), np.arange(9)), "every class has one image"),
    "NaN": (lambda path: npz(path, np.full((9, 8, 8), np.nan), np.arange(9) % 2), "x.npz[3]: NaN or infinity"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(tmp_path: Path, case: str) -> None:
    write, text = ARRAYS[case]
    write(tmp_path / "x.npz")
    found = message(job(tmp_path / "x.npz"))
    assert found.startswith("data.train: ")
    assert text in found


def test_images_with_nan_are_left_out(tmp_path: Path) -> None:
    images = noise(40, 8, 8) / 255
    images[7, 0, 0] = np.inf
    data = load(job(npz(tmp_path / "x.npz", images, np.arange(40) % 2)))
    assert "left out: x.npz[7]: NaN or infinity" in data.notes
    titles = [split.title(i) for split in (data.train, data.validation) for i in range(len(split))]
    assert sorted(titles) == sorted(f"x.npz[{i}]" for i in range(40) if i != 7)


@pytest.mark.parametrize("size", [5, 8, 16])
def test_arrays_are_resized_when_asked(tmp_path: Path, size: int) -> None:
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (20, 8, 1))
    data = load(job(npz(tmp_path / "x.npz", ramp, np.arange(20) % 2), image_size=size))
    (pixels,) = data.train.gather(np.arange(2))
    assert pixels.shape == (2, 1, size, size)
    wanted = np.asarray(Image.fromarray(ramp[0]).resize((size, size), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels[0, 0].numpy() - wanted).max() <= 1


@pytest.mark.parametrize(("channels", "wanted"), [(1, [76, 150, 29]), (3, [255, 0, 0])])
def test_channels_of_arrays_when_asked(tmp_path: Path, channels: int, wanted: list[int]) -> None:
    images = np.zeros((30, 8, 8, 3), np.uint8)
    images[np.arange(30), :, :, np.arange(30) % 3] = 255
    data = load(job(npz(tmp_path / "x.npz", images, np.arange(30) % 3), channels=channels))
    ids = np.arange(len(data.train))
    first = data.train.gather(ids)[0][:, :, 4, 4]
    for pixel, target in zip(first.tolist(), data.train.targets[""].tolist(), strict=True):
        assert pixel == ([wanted[target]] if channels == 1 else np.roll(wanted, target).tolist())


def test_grey_arrays_as_colour(tmp_path: Path) -> None:
    data = load(job(npz(tmp_path / "x.npz", noise(20, 8, 8), np.arange(20) % 2), channels=3))
    (pixels,) = data.train.gather(np.arange(4))
    assert pixels.shape == (4, 3, 8, 8)
    assert torch.equal(pixels[:, 0], pixels[:, 2])


# ------------------------------------------------------------------------------------------------------ class folders


def test_folders_are_classes_in_sorted_order_and_nested_files_count(tmp_path: Path) -> None:
    folder(tmp_path, wolf=4, cat=4)
    (tmp_path / "cat" / "more" / "deep").mkdir(parents=True)
    Image.new("L", (16, 16)).save(tmp_path / "cat" / "more" / "deep" / "x.PNG")
    data = load(job(tmp_path))
    assert data.heads[""].classes == ("cat", "wolf")
    titles = {split.title(i) for split in (data.train, data.validation) for i in range(len(split))}
    assert str(tmp_path / "cat/more/deep/x.PNG") in titles
    assert len(titles) == 9
    assert data.decoded is False
    assert data.notes[0] == "7 training and 2 validation images, 2 classes"


def test_what_is_passed_over_is_said(tmp_path: Path) -> None:
    folder(tmp_path, a=4, b=4)
    (tmp_path / "a" / ".hidden.png").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "b" / "Thumbs.db").touch()
    (tmp_path / "b" / "README").touch()
    (tmp_path / "loose.png").touch()
    (tmp_path / "list.csv").touch()
    (tmp_path / "b" / "again").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    data = load(job(tmp_path))
    assert len(data.train) + len(data.validation) == 8
    assert data.heads[""].classes == ("a", "b")
    assert data.notes[1:5] == [
        f"{tmp_path}: folders without images are no classes: empty",
        f"{tmp_path}: 1 images outside of class folders are left out: loose.png",
        f"{tmp_path}: files that are no images by their name are left out: 1 without extension, 1 .db, 1 .txt",
        f"{tmp_path}: links that lead back to a folder above are not followed: a/up, b/again",
    ]


def test_a_linked_class_folder_is_followed(tmp_path: Path) -> None:
    folder(tmp_path / "elsewhere", x=4)
    folder(tmp_path / "data", a=4)
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere" / "x")
    data = load(job(tmp_path / "data"))
    assert torch.bincount(torch.cat([data.train.targets[""], data.validation.targets[""]])).tolist() == [4, 4]


FOLDERS: dict[str, tuple[Any, str]] = {
    "missing": (lambda root: None, "x does not exist"),
    "empty": (lambda root: root.mkdir(), "has no images in class folders (0 images lie outside of them)"),
    "flat": (lambda root: folder(root, sub=3) and (root / "sub").rename(root.with_name("y"))
             and root.with_name("y").rename(root), "no images in class folders"),
    "one class": (lambda root: folder(root, cat=4), "4 images of 1 class: cat"),
    "parts": (lambda root: folder(root, train=4, val=4), "are parts of a data set, not classes: train, val"),
    "no image can be used": (lambda root: (folder(root, a=30, b=30), (root / "c").mkdir(),
                             (root / "c" / "x.png").touch()), "no image can be used of the classes c"),
    "a text file": (lambda root: root.write_text("hello"), "is of no known kind"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_bad_folders(tmp_path: Path, case: str) -> None:
    write, text = FOLDERS[case]
    if case == "flat":
        (tmp_path / "x").mkdir()
        Image.new("L", (9, 9)).save(tmp_path / "x" / "1.png")
        text = "has no images in class folders (1 images lie outside of them)"
    else:
        write(tmp_path / "x")
    found = message(job(tmp_path / "x"))
    assert found.startswith("data.train: ")
    assert text in found


def test_parts_are_named_in_the_advice(tmp_path: Path) -> None:
    folder(tmp_path, valid=4, Train=4)
    assert "name the parts: data.train: .../Train, data.validation: .../valid" in message(job(tmp_path))


# ---------------------------------------------------------------------------------------------------------- geometry


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
    assert f"image_size {size}: half of the images have a short side of {sorted(sides)[1]} or more" in note


def test_one_image_in_colour_makes_three_channels(tmp_path: Path) -> None:
    folder(tmp_path, a=4, b=4)
    assert load(job(tmp_path)).preprocessing["channels"] == 1
    Image.new("RGB", (16, 16), (9, 8, 7)).save(tmp_path / "a" / "colour.png")
    data = load(job(tmp_path))
    assert data.preprocessing["channels"] == 3
    assert "channels 3: there are images in colour" in data.notes
    assert load(job(tmp_path, channels=1)).preprocessing["channels"] == 1


# --------------------------------------------------------------------------------------------------------- validation


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 0.5, 0.9, 0.99])
def test_validation_is_taken_from_every_class(fraction: float) -> None:
    sizes = {0: 1, 1: 2, 2: 3, 3: 10, 4: 1000}
    labels = np.random.default_rng(0).permutation(np.repeat(list(sizes), list(sizes.values())))
    kept, held = stratify.held_out(labels, fraction, seed=3)
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(labels)))
    counts = Counter(labels[held].tolist())
    for label, size in sizes.items():
        wanted = 0 if size == 1 else min(max(1, round(size * fraction)), size - 1)
        assert counts[label] == wanted


def test_validation_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", noise(100, 8, 8), np.arange(100) % 4)

    def held(seed: int) -> list[str]:
        data = load(job(path, seed=seed))
        return [data.validation.title(i) for i in range(len(data.validation))]

    assert held(1) == held(1)
    assert held(1) != held(2)
    assert len(set(held(1)) & set(held(2))) < 15


def test_validation_is_not_the_first_of_each_class() -> None:
    labels = np.repeat([0, 1], 500)
    held = stratify.held_out(labels, 0.2, seed=0)[1]
    assert 200 < held[labels[held] == 0].mean() < 300
    assert not np.array_equal(held[:100], held[100:] - 500)


def test_a_class_of_one_image_stays_in_training(tmp_path: Path) -> None:
    data = load(job(folder(tmp_path, a=5, b=5, rare=1)))
    assert "classes with one image, which stays in training: rare" in data.notes
    assert 2 in data.train.targets[""]
    assert 2 not in data.validation.targets[""]


def test_validation_of_its_own(tmp_path: Path) -> None:
    folder(tmp_path / "train", a=5, b=5)
    folder(tmp_path / "test", b=3)
    (tmp_path / "test" / "b" / "bad.png").touch()
    data = load(job(tmp_path / "train", validation=str(tmp_path / "test"), bad_samples=0.3))
    assert (len(data.train), len(data.validation)) == (10, 3)
    assert data.validation.targets[""].tolist() == [1, 1, 1]
    assert "data.validation: 1 of 4 samples cannot be used and is left out" in data.notes


def test_a_class_that_only_validation_has(tmp_path: Path) -> None:
    folder(tmp_path / "train", cat=5, dog=5)
    folder(tmp_path / "test", cat=1, dogs=2, hen=1)
    text = message(job(tmp_path / "train", validation=str(tmp_path / "test")))
    assert 'data.validation: classes that the training data does not have: "dogs" (2), "hen" (1)' in text
    assert "the 2 classes of the training data: cat, dog" in text
    assert 'did you mean "dog"?' in text


def test_images_in_both_parts_are_said(tmp_path: Path) -> None:
    folder(tmp_path, a=5, b=5)
    data = load(job(tmp_path, validation=f"{tmp_path}/a/.."))
    assert any(note.startswith("10 validation images are training images too: ") for note in data.notes)


def test_validation_of_another_type(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", noise(20, 8, 8), np.arange(20) % 2)
    other = npz(tmp_path / "y.npz", noise(20, 8, 8) / 255, np.arange(20) % 2)
    text = message(job(path, validation=str(other)))
    assert text.startswith("data.validation: pixels are float32, those of data.train are uint8")


def test_validation_of_another_size_and_kind(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", noise(20, 8, 8), np.arange(20) % 2)
    for name in "01":
        (tmp_path / "test" / name).mkdir(parents=True)
        Image.new("RGB", (50, 70), (9, 9, 9)).save(tmp_path / "test" / name / "x.jpg")
    data = load(job(path, validation=str(tmp_path / "test")))
    assert data.validation.gather(np.arange(2))[0].shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("given", "ordered"),
    [("b a", "a b"), ("10 9", "9 10"), ("10 9 x", "10 9 x"), ("01 1 0", "0 01 1"), ("² 1", "1 ²"), ("-2 -10", "-10 -2"),
     ("- 1", "- 1")],
)  # fmt: skip
def test_order_of_classes(given: str, ordered: str) -> None:
    assert class_names(given.split()) == tuple(ordered.split())


# ------------------------------------------------------------------------------------------------------ normalisation


def test_normalisation_is_of_the_training_images_alone(tmp_path: Path) -> None:
    images = noise(200, 8, 8, 3)
    images[..., 1] //= 4
    data = load(job(npz(tmp_path / "x.npz", images, np.arange(200) % 2)))
    rows = [int(data.train.title(i).split("[")[1][:-1]) for i in range(len(data.train))]
    seen = images[rows].astype(np.float64) / 255
    assert np.allclose(data.preprocessing["mean"], seen.mean(axis=(0, 1, 2)), atol=1e-12)
    assert np.allclose(data.preprocessing["std"], seen.std(axis=(0, 1, 2)), atol=1e-12)
    ids = np.array([3, 1])
    (ready,) = data.prepare(data.validation.gather(ids), ids, None)
    rows = [int(data.validation.title(i).split("[")[1][:-1]) for i in ids]
    wanted = (images[rows] / 255 - seen.mean(axis=(0, 1, 2))) / seen.std(axis=(0, 1, 2))
    assert np.allclose(ready.permute(0, 2, 3, 1), wanted, atol=1e-5)


def test_a_constant_channel_is_said_and_stays_finite(tmp_path: Path) -> None:
    images = noise(40, 8, 8, 3)
    images[..., 2] = 77
    data = load(job(npz(tmp_path / "x.npz", images, np.arange(40) % 2)))
    assert "a channel has the same value everywhere; it is centred and not scaled" in data.notes
    (ready,) = data.prepare(data.train.gather(np.arange(8)), np.arange(8), None)
    assert float(ready[:, 2].abs().max()) < 1e-6


def test_preprocessing_is_plain_json(tmp_path: Path) -> None:
    import json

    data = load(job(npz(tmp_path / "x.npz", noise(40, 8, 8, 3), np.arange(40) % 2)))
    assert json.loads(json.dumps(data.preprocessing)) == data.preprocessing
    assert data.preprocessing["classes"] == ["0", "1"]


def test_the_digits_of_the_first_job() -> None:
    data = load(job(Path(__file__).parents[2] / "jobs/data/digits.npz", validation=0.2))
    assert data.notes[0] == "1,438 training and 359 validation images, 10 classes"
    assert data.preprocessing["image_size"] == 8
    assert data.preprocessing["channels"] == 1
    assert torch.bincount(data.validation.targets[""]).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    (pixels,) = data.train.gather(np.arange(len(data.train)))
    assert set(pixels.unique().tolist()) == {round(count * 255 / 16) for count in range(17)}
