"""One pixel scale per model: the same pixels in another form give the same inputs, and another scale is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from tests.axes import each_once
from tests.messages import says
from tests.pictures import job, read_refusal, write_npz

COUNT, SIDE = 24, 16
LABELS = np.repeat(["a", "b"], COUNT // 2)
Pixels = npt.NDArray[Any]


def pixels(channels: int = 1, seed: int = 0, low: int = 10, high: int = 60) -> Pixels:
    """Images (COUNT, SIDE, SIDE) or (..., channels) uint8 with values from `low` to `high`."""
    shape = (COUNT, SIDE, SIDE) if channels == 1 else (COUNT, SIDE, SIDE, channels)
    images = np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(np.uint8)
    images[:, 0, 0], images[:, 0, 1] = low, high
    return images


def arrays(change: Callable[[Pixels], Pixels]) -> Callable[[Path, Pixels], Path]:
    return lambda path, images: write_npz(path.with_suffix(".npz"), change(images), LABELS)


def folders(suffix: str, change: Callable[[Pixels], Image.Image] = Image.fromarray, **options: Any) -> Any:
    def write(path: Path, images: Pixels) -> Path:
        for number, (image, label) in enumerate(zip(images, LABELS, strict=True)):
            (path / label).mkdir(parents=True, exist_ok=True)
            change(image).save(path / label / f"{number:02}.{suffix}", **options)
        return path

    return write


def manifest(kind: str) -> Callable[[Path, Pixels], Path]:
    def write(path: Path, images: Pixels) -> Path:
        path.mkdir()
        rows = [{"path": f"{number:02}.png", "label": label} for number, label in enumerate(LABELS.tolist())]
        for row, image in zip(rows, images, strict=True):
            Image.fromarray(image).save(path / row["path"])
        file = path / f"rows.{kind}"
        if kind == "csv":
            file.write_text("path,label\n" + "".join(f"{row['path']},{row['label']}\n" for row in rows))
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    return write


def encode_png(image: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(path: Path, images: Pixels) -> Path:
    import pyarrow
    from pyarrow import parquet as file

    cells = [{"bytes": encode_png(image), "path": None} for image in images]
    file.write_table(pyarrow.table({"image": cells, "label": LABELS}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def deep(image: Pixels) -> Image.Image:
    return Image.fromarray(image.astype(np.uint16))


def full(image: Pixels) -> Image.Image:
    return Image.fromarray(image.astype(np.uint16) * 257)


def palette(image: Pixels) -> Image.Image:
    picture = Image.fromarray(image)
    picture.putpalette([level for level in range(256) for _ in range(3)])
    return picture


GRAY: dict[str, Any] = {
    "uint8": arrays(lambda x: x),
    "int16": arrays(lambda x: x.astype(np.int16)),
    "int32": arrays(lambda x: x.astype(np.int32)),
    "int64": arrays(lambda x: x.astype(np.int64)),
    "uint16": arrays(lambda x: x.astype(np.uint16)),
    "float32 bytes": arrays(lambda x: x.astype(np.float32)),
    "float64 bytes": arrays(lambda x: x.astype(np.float64)),
    "NHWC": arrays(lambda x: x[..., None]),
    "NCHW": arrays(lambda x: x[:, None]),
    "png": folders("png"),
    "bmp": folders("bmp"),
    "tiff": folders("tiff"),
    "16-bit png": folders("png", deep),
    "16-bit tiff": folders("tiff", deep),
    "palette": folders("png", palette),
    "csv": manifest("csv"),
    "jsonl": manifest("jsonl"),
    "parquet": parquet,
}
"""Forms of the same bytes: any of them gives the same model, and any model takes any of them."""
OTHERS: dict[str, Any] = {
    "float32 shares": arrays(lambda x: (x / 255).astype(np.float32)),
    "float64 shares": arrays(lambda x: x / 255),
    "uint16 full": arrays(lambda x: x.astype(np.uint16) * 257),
    "int64 times 10": arrays(lambda x: x.astype(np.int64) * 10),
    "int32 centered": arrays(lambda x: x.astype(np.int32) - 300),
    "float32 centered": arrays(lambda x: (x / 127.5 - 1).astype(np.float32)),
    "16-bit full png": folders("png", full),
}
"""Forms on other scales: the same inputs, or refused."""
RANGES = {
    "uint16 full": (0, 65535),
    "16-bit full png": (0, 65535),
    "int64 times 10": (100, 600),
    "int32 centered": (-290, -240),
    "float32 centered": (10 / 127.5 - 1, 60 / 127.5 - 1),
}
"""Values of black and white of forms that do not show them."""


def prepare_all(data: Dataset) -> torch.Tensor:
    """All images of a data set as the network gets them, training first."""
    parts = [(split, np.arange(len(split))) for split in (data.train, data.validation)]
    return torch.cat([data.prepare(split.gather(ids), ids, None)[0] for split, ids in parts])


def prepare_new(path: Path, data: Dataset, *, labelled: bool) -> torch.Tensor:
    """New images as the network gets them, with the preprocessing as a model stores it."""
    stored = json.loads(json.dumps(data.preprocessing))
    new = load_data.load_new([path], stored, data.heads, labelled=labelled)
    ids = np.arange(len(new.split))
    return new.prepare(new.split.gather(ids), ids, None)[0]


@dataclass
class TrainedForm:
    """Data of one form, and what a model of it sees in new images of that form."""

    data: Dataset
    path: Path
    new: torch.Tensor
    options: dict[str, Any]
    """Options of the job."""


def write_and_load(folder: Path, form: Any, name: str, images: Pixels, **options: Any) -> TrainedForm:
    path = form(folder / name, images)
    options["image_size"] = SIDE
    data = load(job(path, **options))
    return TrainedForm(data, path, prepare_new(path, data, labelled=True), options)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainedForm:
    return write_and_load(tmp_path_factory.mktemp("base"), GRAY["uint8"], "x", pixels())


@pytest.mark.parametrize("name", GRAY)
def test_the_same_bytes_in_another_form_give_the_same_model(tmp_path: Path, name: str, base: TrainedForm) -> None:
    """Trained on this form and asked for bytes, and the other way round; predict sees what evaluate sees."""
    other = write_and_load(tmp_path, GRAY[name], "y", pixels())
    assert torch.allclose(prepare_all(other.data), prepare_all(base.data), atol=1e-5)
    for path, data in ((other.path, base.data), (base.path, other.data), (other.path, other.data)):
        evaluated = prepare_new(path, data, labelled=True)
        assert torch.equal(evaluated, prepare_new(path, data, labelled=False))
        assert torch.allclose(evaluated, base.new, atol=1e-5)


@pytest.mark.parametrize(("name", "form"), each_once(OTHERS, ["uint8", "int64", "png", "16-bit tiff"]))
def test_another_scale_is_refused_or_right(tmp_path: Path, name: str, form: str) -> None:
    """A model of one scale and images of another, both ways, as new images, as validation data and as a test."""
    one = write_and_load(tmp_path, GRAY[form], "x", pixels())
    other = write_and_load(tmp_path, OTHERS[name], "y", pixels(), pixel_range=RANGES.get(name))
    # Their own statistics make them the same, whatever the scale is, up to the rounding of 8 bits.
    assert torch.allclose(prepare_all(other.data), prepare_all(one.data), atol=0.05)
    for trained, new in ((one, other), (other, one)):
        results: list[torch.Tensor | str] = []
        for labelled in (True, False):
            try:
                results.append(prepare_new(new.path, trained.data, labelled=labelled))
            except DataError as error:
                results.append(error.given)
        if isinstance(results[0], str):
            assert results[0] == results[1]
            assert says(results[0], "training-images-between")
            assert read_refusal(job(trained.path, validation=str(new.path), **trained.options)).startswith(
                "data.validation: "
            )
            with pytest.raises(DataError, match=r"^data\.test: .*but the training images were between"):
                load_data.add_test(job(trained.path, test=str(new.path), **trained.options), trained.data)
        else:
            assert isinstance(results[1], torch.Tensor)
            assert torch.equal(results[0], results[1])
            assert torch.allclose(results[0], trained.new, atol=1e-2)
            load(job(trained.path, validation=str(new.path), **trained.options))


COLOR: dict[str, Any] = {
    "NCHW": arrays(lambda x: x.transpose(0, 3, 1, 2)),
    "int64": arrays(lambda x: x.astype(np.int64)),
    "png": folders("png"),
    "bmp": folders("bmp"),
    "tiff": folders("tiff"),
    "tiff lzw": folders("tiff", compression="tiff_lzw"),
    "webp": folders("webp", lossless=True),
    "RGBA": folders("png", lambda x: Image.fromarray(x).convert("RGBA")),
    "parquet": parquet,
    "csv": manifest("csv"),
}


@pytest.mark.parametrize("name", COLOR)
def test_the_same_colors_in_another_form_give_the_same_model(tmp_path: Path, name: str) -> None:
    one = write_and_load(tmp_path, arrays(lambda x: x), "x", pixels(3))
    other = write_and_load(tmp_path, COLOR[name], "y", pixels(3))
    assert torch.allclose(prepare_all(other.data), prepare_all(one.data), atol=1e-5)
    for path, data in ((other.path, one.data), (one.path, other.data)):
        evaluated = prepare_new(path, data, labelled=True)
        assert torch.equal(evaluated, prepare_new(path, data, labelled=False))
        assert torch.allclose(evaluated, one.new, atol=1e-5)


BILEVEL: dict[str, Any] = {
    "uint8": arrays(lambda x: x),
    "int64 shares": arrays(lambda x: (x // 255).astype(np.int64)),
    "uint8 shares": arrays(lambda x: x // 255),
    "float32 shares": arrays(lambda x: (x // 255).astype(np.float32)),
    "1-bit png": folders("png", lambda x: Image.fromarray(x).convert("1")),
    "1-bit tiff": folders("tiff", lambda x: Image.fromarray(x).convert("1")),
    "16-bit shares": folders("png", lambda x: deep(x // 255)),
}


@pytest.mark.parametrize("name", BILEVEL)
def test_black_and_white(tmp_path: Path, name: str) -> None:
    """Booleans, 0 and 1, and 0 and 255 give the same model; 0 and 1 are refused by a model of bytes, not seen as black."""
    images = np.where(pixels() > 35, 255, 0).astype(np.uint8)
    one = write_and_load(tmp_path, arrays(lambda x: x > 0), "x", images)
    other = write_and_load(tmp_path, BILEVEL[name], "y", images)
    assert torch.allclose(prepare_all(other.data), prepare_all(one.data), atol=1e-5)
    for path, data in ((other.path, one.data), (one.path, other.data)):
        try:
            assert torch.allclose(prepare_new(path, data, labelled=True), one.new, atol=1e-5)
        except DataError as error:
            assert says(str(error), "training-images-between")  # noqa: PT017


def test_order_of_rows_and_files(tmp_path: Path, base: TrainedForm) -> None:
    """The statistics of a model do not depend on the order; each image is seen as before."""
    order = np.random.default_rng(3).permutation(COUNT)
    path = write_npz(tmp_path / "y.npz", pixels()[order], LABELS[order])
    assert torch.equal(prepare_new(path, base.data, labelled=True), base.new[order])
    assert torch.equal(prepare_new(path, base.data, labelled=False), base.new[order])


@pytest.mark.parametrize(
    ("change", "declared"),
    [
        (lambda x: x / 255 * 15.9, "[0.623529, 3.74118]"),
        (lambda x: x.astype(np.int64) * 10, "[100, 600]"),
        (lambda x: x.astype(np.float32) - 60, "[-50, 0]"),
    ],
    ids=["fractions of a few levels", "more than 8 bits", "negative numbers"],
)
def test_values_that_show_no_scale_are_refused(
    tmp_path: Path, change: Callable[[Pixels], Pixels], declared: str
) -> None:
    """The line that the error names makes the job train."""
    path = arrays(change)(tmp_path / "x", pixels())
    refusal = read_refusal(job(path))
    assert says(refusal, "pixel-range-line", declared)
    pair = [float(number) for number in declared.strip("[]").split(",")]
    assert torch.allclose(
        prepare_all(load(job(path, pixel_range=pair))),
        prepare_all(load(job(arrays(lambda x: x)(tmp_path / "y", pixels())))),
        atol=0.01,
    )


def test_a_declared_range_that_the_images_do_not_have(tmp_path: Path) -> None:
    path = arrays(lambda x: x.astype(np.int64) * 10)(tmp_path / "x", pixels())
    for declared in ([0, 100], [0, 65535], [1000, 2000]):
        assert says(read_refusal(job(path, pixel_range=declared)), "correct-pixel-range", *declared), declared
    bytes_ = folders("png")(tmp_path / "y", pixels())
    for declared in ([0, 4095], [0, 1]):
        assert says(read_refusal(job(bytes_, pixel_range=declared)), "correct-pixel-range", *declared)
