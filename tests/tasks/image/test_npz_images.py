"""Arrays of images and labels as a data set: forms, types, bad ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data.load_data import load
from tests.pictures import job, make_noise, read_refusal, write_npz

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("shape", "expected_shape"),
    [
        ((20, 8, 8), (1, 8, 8)),
        ((20, 8, 8, 1), (1, 8, 8)),
        ((20, 8, 8, 3), (3, 8, 8)),
        ((20, 1, 8, 8), (1, 8, 8)),
        ((20, 3, 8, 8), (3, 8, 8)),
        ((20, 8, 12, 3), (3, 8, 8)),
        ((20, 3, 3, 3), None),
    ],
)
def test_forms_of_arrays(tmp_path: Path, shape: tuple[int, ...], expected_shape: tuple[int, ...] | None) -> None:
    images = make_noise(*shape)
    path = write_npz(tmp_path / "x.npz", images, np.arange(20) % 2)
    data = load(job(path, **({"image_size": 4} if expected_shape is None else {})))
    (pixels,) = data.train.gather(np.arange(3))
    assert pixels.shape[1:] == (expected_shape or (3, 4, 4))
    assert pixels.dtype == torch.uint8
    if shape == (20, 8, 8, 3):
        row = int(data.train.title(0).split("[")[1][:-1])
        assert np.array_equal(pixels[0].permute(1, 2, 0).numpy(), images[row])
    if shape == (20, 8, 12, 3):
        row = int(data.train.title(0).split("[")[1][:-1])
        assert np.array_equal(pixels[0].permute(1, 2, 0).numpy(), images[row, :, 2:10])


PIXELS = {
    "uint8": (make_noise(20, 8, 8), "uint8", ""),
    "bool": (make_noise(20, 8, 8) > 99, "uint8", "x.npz: bool images become 0 and 255"),
    "float32": (make_noise(20, 8, 8) / np.float32(255), "float32", ""),
    "float64": (make_noise(20, 8, 8) / 255, "float32", "x.npz: float64 images become float32"),
    "int64": (
        make_noise(20, 8, 8, dtype=np.int64),
        "uint8",
        "x.npz: int64 images with whole numbers from 0 to 255 become uint8",
    ),
    "wide": (
        np.where(make_noise(20, 8, 8) > 99, 3.0, -2.0),
        "float32",
        "pixels of x.npz are between -2 and 3: -2 is black, and 3 is white",
    ),
}


@pytest.mark.parametrize("case", PIXELS)
def test_types_of_pixels(tmp_path: Path, case: str) -> None:
    images, kind, note = PIXELS[case]
    declared = [-2, 3] if case == "wide" else None
    data = load(job(write_npz(tmp_path / "x.npz", images, np.arange(20) % 2), pixel_range=declared))
    raw = data.train.gather(np.arange(len(data.train)))
    assert str(raw[0].dtype) == f"torch.{kind}"
    assert note == "" or note in data.notes
    (ready,) = data.prepare(raw, np.arange(len(data.train)), None)
    assert ready.dtype == torch.float32
    assert abs(float(ready.mean())) < 1e-4
    assert abs(float(ready.std(correction=0)) - 1) < 1e-4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(20) % 3, "0 1 2"),
        (np.arange(20) % 11, "0 1 2 3 4 5 6 7 8 9 10"),
        (np.array(["cat", "dog"] * 10), "cat dog"),
        (np.array([b"dog", b"cat"] * 10), "cat dog"),
        (np.array([True, False] * 10), "False True"),
        (np.array([[1], [0]] * 10), "0 1"),
        (np.array([-1, 1] * 10), "-1 1"),
        (np.array(["10", "9"] * 10), "9 10"),
        (np.array(["10", "b"] * 10), "10 b"),
    ],
)
def test_labels_of_arrays(tmp_path: Path, labels: Any, classes: str) -> None:
    data = load(job(write_npz(tmp_path / "x.npz", make_noise(20, 8, 8), labels)))
    assert data.heads[""].classes == tuple(classes.split())
    for split in (data.train, data.validation):
        for i in range(len(split)):
            row = int(split.title(i).split("[")[1][:-1])
            label = labels.reshape(-1)[row]
            name = label.decode() if isinstance(label, bytes) else str(label)
            assert data.heads[""].classes[int(split.targets[""][i])] == name


def broken_zip(path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, images=make_noise(20, 8, 8), labels=np.arange(20))
    path.write_bytes(content.getvalue()[:-100])


def not_an_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", b"\x93NUMPY nothing")
        file.writestr("labels.npy", b"")


ARRAYS: dict[str, tuple[Any, str]] = {
    "no labels": (lambda path: np.savez(path, images=make_noise(9, 8, 8)), "has the arrays images\n"),
    "other names": (lambda path: np.savez(path, x=make_noise(9, 8, 8), y=np.arange(9)), "has the arrays x, y\n"),
    "objects": (lambda path: write_npz(path, np.array([{}] * 9, object), np.arange(9)), "Python objects (pickle)"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x04N."), "Python objects (pickle)"),
    "empty file": (lambda path: path.touch(), "cannot be read: it is empty"),
    "cut": (broken_zip, "cannot be read: File is not a zip file"),
    "damaged": (not_an_array, "cannot be read: "),
    "flat": (lambda path: write_npz(path, make_noise(9, 64), np.arange(9)), "images of"),
    "4 channels": (lambda path: write_npz(path, make_noise(9, 8, 8, 4), np.arange(9)), "have shape (9, 8, 8, 4)"),
    "no images": (lambda path: write_npz(path, make_noise(0, 8, 8), np.arange(0)), "have shape (0, 1, 8, 8): nothing"),
    "text images": (lambda path: write_npz(path, np.full((9, 8, 8), "x"), np.arange(9)), "images of"),
    "lengths": (lambda path: write_npz(path, make_noise(9, 8, 8), np.arange(8)), "has 9 images and 8 labels"),
    "float labels": (lambda path: write_npz(path, make_noise(9, 8, 8), np.arange(9) / 2), "are float64 of shape (9,)"),
    "one-hot labels": (
        lambda path: write_npz(path, make_noise(9, 8, 8), np.eye(9, dtype=int)),
        "are int64 of shape (9, 9)",
    ),
    "one class": (lambda path: write_npz(path, make_noise(9, 8, 8), np.ones(9, int)), "9 images of 1 class: 1"),
    "each alone": (
        lambda path: write_npz(path, make_noise(9, 8, 8), np.arange(9)),
        "too few to leave any for validation",
    ),
    "NaN": (lambda path: write_npz(path, np.full((9, 8, 8), np.nan), np.arange(9) % 2), "x.npz[3]: NaN or infinity"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(tmp_path: Path, case: str) -> None:
    write, text = ARRAYS[case]
    write(tmp_path / "x.npz")
    error_text = read_refusal(job(tmp_path / "x.npz"))
    assert error_text.startswith("data.train: ")
    assert text in error_text


def test_images_with_nan_are_left_out(tmp_path: Path) -> None:
    images = make_noise(40, 8, 8) / 255
    images[7, 0, 0] = np.inf
    data = load(job(write_npz(tmp_path / "x.npz", images, np.arange(40) % 2)))
    assert "left out: x.npz[7]: NaN or infinity" in data.notes
    titles = [split.title(i) for split in (data.train, data.validation) for i in range(len(split))]
    assert sorted(titles) == sorted(f"x.npz[{i}]" for i in range(40) if i != 7)


def test_images_without_a_label_are_left_out(tmp_path: Path) -> None:
    labels = np.array(["", "cat", "dog"] * 20)
    data = load(job(write_npz(tmp_path / "x.npz", make_noise(60, 8, 8), labels), bad_samples=0.4))
    assert data.heads[""].classes == ("cat", "dog")
    assert "left out: x.npz[0]: label is empty" in "\n".join(data.notes)
    for split in (data.train, data.validation):
        for i in range(len(split)):
            row = int(split.title(i).split("[")[1][:-1])
            assert data.heads[""].classes[int(split.targets[""][i])] == labels[row]


@pytest.mark.parametrize("size", [5, 8, 16])
def test_arrays_are_resized_on_request(tmp_path: Path, size: int) -> None:
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (20, 8, 1))
    data = load(job(write_npz(tmp_path / "x.npz", ramp, np.arange(20) % 2), image_size=size))
    (pixels,) = data.train.gather(np.arange(2))
    assert pixels.shape == (2, 1, size, size)
    expected = np.asarray(Image.fromarray(ramp[0]).resize((size, size), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels[0, 0].numpy() - expected).max() <= 1


@pytest.mark.parametrize(("channels", "expected_pixel"), [(1, [76, 150, 29]), (3, [255, 0, 0])])
def test_channels_of_arrays_on_request(tmp_path: Path, channels: int, expected_pixel: list[int]) -> None:
    images = np.zeros((30, 8, 8, 3), np.uint8)
    images[np.arange(30), :, :, np.arange(30) % 3] = 255
    data = load(job(write_npz(tmp_path / "x.npz", images, np.arange(30) % 3), channels=channels))
    ids = np.arange(len(data.train))
    first = data.train.gather(ids)[0][:, :, 4, 4]
    for pixel, target in zip(first.tolist(), data.train.targets[""].tolist(), strict=True):
        assert pixel == ([expected_pixel[target]] if channels == 1 else np.roll(expected_pixel, target).tolist())


def test_grey_arrays_as_colour(tmp_path: Path) -> None:
    data = load(job(write_npz(tmp_path / "x.npz", make_noise(20, 8, 8), np.arange(20) % 2), channels=3))
    (pixels,) = data.train.gather(np.arange(4))
    assert pixels.shape == (4, 3, 8, 8)
    assert torch.equal(pixels[:, 0], pixels[:, 2])
